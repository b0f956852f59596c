"""A run: from a recipe to a folder with checkpoints, logs and the best model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState
from torch.utils.data import DataLoader

from openvse.build import build_model, build_objective
from openvse.data import (
    Corpus,
    EpochBatches,
    PairDataset,
    image_loader,
    open_corpus,
    own_features,
    with_features,
)
from openvse.errors import RecipeError, TrainingError
from openvse.evaluation import embed_corpus, evaluate
from openvse.extraction import ExtractionProgress, extract_features
from openvse.features_store import FeatureStore, open_fitting
from openvse.files import locked, write_whole
from openvse.model import TwoTower
from openvse.recipe import Recipe, TrainingSpec, parse_recipe
from openvse.training.checkpoint import Progress, require_checkpoint
from openvse.training.records import Silent, Watcher
from openvse.training.trainer import Loaders, Trainer
from openvse.types import Batch, FeatureSource

_logger = logging.getLogger(__name__)

AUTO = "auto"


@dataclass(frozen=True)
class RunResult:
    """A finished run: where the best model lies and what it reached on validation."""

    best: Path
    progress: Progress


def train(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
    on_extraction: Callable[[ExtractionProgress], None] | None = None,
) -> RunResult:
    """Train as a recipe says; the test split is never read.

    Args:
        recipe: what to do.
        folder: the run's folder: ``recipe.yaml``, ``last.pt``, ``best/``, ``metrics.jsonl``, ``tensorboard/``.
        resume: go on with the run in ``folder``; on the CPU it ends at the same numbers as one that never stopped.
        watcher: told about every step.
        on_extraction: told how the extraction of features goes (``data.features: auto``).

    Raises:
        RecipeError: the recipe does not build.
        DataError: the data cannot be used.
        TrainingError: the folder holds another run, another process writes there, or the loss is no number.
    """
    watcher = watcher or Silent()
    spec = recipe.training
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    accelerator = _accelerator(spec)
    with ExitStack() as held:
        if accelerator.is_main_process:
            held.enter_context(_claimed(folder, recipe, resume))
        accelerator.wait_for_everyone()
        return _train(recipe, folder, resume, watcher, on_extraction, accelerator)


def _train(
    recipe: Recipe,
    folder: Path,
    resume: bool,
    watcher: Watcher,
    on_extraction: Callable[[ExtractionProgress], None] | None,
    accelerator: Accelerator,
) -> RunResult:
    corpus = open_corpus(_source(recipe), require_images=recipe.data.features in (None, AUTO))
    model = build_model(recipe, captions=corpus.split("train").captions)
    # Refused before hours of extraction, if the model does not suit them.
    objectives = [build_objective(recipe, phase, model=model) for phase in recipe.training.phases]
    features = open_features(recipe, model, corpus, folder, accelerator, on_extraction)
    corpus = with_features(corpus, features)
    for problem in corpus.problems:
        watcher.warn(problem)
    torch.manual_seed(recipe.seed + accelerator.process_index)
    trainer = Trainer(
        recipe,
        model,
        objectives,
        _loaders(recipe, model, corpus, features, accelerator),
        folder,
        accelerator,
        watcher,
    )
    if resume:
        trainer.resume()
    return RunResult(folder / "best", trainer.fit())


def open_features(
    recipe: Recipe,
    model: TwoTower,
    corpus: Corpus,
    folder: Path,
    accelerator: Accelerator,
    progress: Callable[[ExtractionProgress], None] | None = None,
) -> FeatureSource | None:
    """Open the recipe's feature store; ``auto`` first extracts what it lacks into the run's folder.

    Where the recipe names none, the data set's own features are read, if it has some and the encoder makes none.

    Raises:
        StoreError: no store, or one that another encoder made; no store of a folder fits, or several do.
        RecipeError: ``auto`` with a backbone that trains, whose features would be out of date after one step.
    """
    encoder = model.image.encoder
    where = recipe.data.features
    own = own_features(corpus, encoder) if where in (None, AUTO) else None
    if where is None or own is not None:
        return own
    if where != AUTO:
        return open_fitting(Path(where), fingerprint=encoder.fingerprint, dim=encoder.feature_dim)
    if encoder.fine_tune:
        raise RecipeError(
            "recipe: data.features: auto stores what a frozen backbone yields: set fine_tune: false"
        )
    store = folder / "features"
    images = list(zip(corpus.image_ids, corpus.image_paths, strict=True))
    if accelerator.is_main_process:
        report = extract_features(encoder, images, store, device=accelerator.device, progress=progress)
        for _, reason in report.failed:
            _logger.warning("skipped a picture: %s", reason)
    accelerator.wait_for_everyone()
    return FeatureStore.open(store, encoder.fingerprint)


def _loaders(
    recipe: Recipe, model: TwoTower, corpus: Corpus, features: FeatureSource | None, accelerator: Accelerator
) -> Loaders:
    training, validation = corpus.split("train"), corpus.split("validation")
    images = image_loader(model.image.encoder, training, features, augment=True)
    dataset = PairDataset(training, images, model.text.encoder.tokenize(training.captions))

    def batches(epoch: int, start: int) -> EpochBatches:
        return EpochBatches(
            len(dataset),
            recipe.training.batch_size,
            seed=recipe.seed,
            epoch=epoch,
            start=start,
            rank=accelerator.process_index,
            num_processes=accelerator.num_processes,
        )

    def epoch(number: int, start: int) -> Iterable[Batch]:
        # A generator of its own: the loader must not draw from the stream that dropout draws from.
        return DataLoader(
            dataset,
            sampler=batches(number, start),
            batch_size=None,
            num_workers=recipe.data.num_workers,
            generator=torch.Generator().manual_seed(recipe.seed),
            collate_fn=_as_it_is,
        )

    def validate(trained: TwoTower) -> dict[str, float]:
        embedded = embed_corpus(trained, validation, features)
        report = evaluate(
            embedded.images, embedded.texts, embedded.corpus.relevance, trained.similarity, resamples=0
        )
        return dict(report.metrics)

    return Loaders(epoch, len(batches(0, 0)), validate)


def _as_it_is(batch: Any) -> Any:
    """Keep DataLoader from looking into a finished batch."""
    return batch


def _accelerator(spec: TrainingSpec) -> Accelerator:
    """Set up device, precision and processes.

    Raises:
        TrainingError: the device is not there, or cannot compute in the precision.
    """
    # Left to find the CPU by itself, accelerate would not join the processes.
    on_cpu = spec.device == "cpu" or (spec.device == "auto" and not torch.accelerator.is_available())
    if on_cpu and spec.precision == "fp16":
        raise TrainingError(
            "training.precision is fp16, which needs a GPU: on a CPU set training.precision=bf16 or fp32"
        )
    # accelerate keeps one state for the whole process, which would refuse a second run of another precision.
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(
        cpu=on_cpu,
        mixed_precision="no" if spec.precision == "fp32" else spec.precision,
        # Parts that a phase freezes have no gradient to wait for; looking for them costs time.
        kwargs_handlers=[
            DistributedDataParallelKwargs(find_unused_parameters=any(phase.frozen for phase in spec.phases))
        ],
    )
    if spec.device not in ("auto", accelerator.device.type):
        raise TrainingError(
            f"training.device is {spec.device}, but this machine offers {accelerator.device.type}: "
            f"set training.device=auto, or install a build of PyTorch for {spec.device}"
        )
    return accelerator


def _source(recipe: Recipe) -> str:
    if not recipe.data.source:
        raise RecipeError(
            "recipe: data.source is not set: add data.source=FOLDER (or flickr8k:FOLDER, file.csv)"
        )
    return recipe.data.source


@contextmanager
def _claimed(folder: Path, recipe: Recipe, resume: bool) -> Iterator[None]:
    """Make the run's folder, or check that it holds this very recipe's run, and keep other processes out."""
    if resume:  # known before hours of extraction
        require_checkpoint(folder / "last.pt")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, "run", TrainingError):
        _write_recipe(folder, recipe, resume)
        yield


def _write_recipe(folder: Path, recipe: Recipe, resume: bool) -> None:
    written = folder / "recipe.yaml"
    tree: dict[str, Any] = recipe.to_dict()
    if resume and written.is_file():
        # Keys that an older openvse did not know have their defaults.
        before = parse_recipe(yaml.safe_load(written.read_text())).to_dict()
        changed = sorted(key for key in {*before, *tree} if before.get(key) != tree.get(key))
        if changed:
            raise TrainingError(
                f"run {folder} was started with another {', '.join(changed)}: resume with its own "
                f"{written}, or start a new run in another folder"
            )
        return
    if not resume and (folder / "last.pt").exists():
        raise TrainingError(f"{folder} already holds a run: go on with --resume, or choose another --out")
    write_whole(written, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
