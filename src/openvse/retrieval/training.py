"""Retrieval as a task: two towers, an objective for each phase, and batches gathered over processes."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator
from jaxtyping import Bool, Int
from torch import Tensor, nn

from openvse.aggregators.composed import Beside
from openvse.assembly.parts import build_part
from openvse.batches.pairs import PairDataset, PairsOfImages, image_loader, text_loader, with_features
from openvse.corpus import Corpus
from openvse.corpus.corpus import SharedTexts
from openvse.corpus.trained_on import Seen, SplitData, seen_in_training
from openvse.datasets import open_corpus
from openvse.datasets.check import leakage_between_splits, more_captions
from openvse.encoders import TextEncoder
from openvse.encoders.transformers_text import TransformersText
from openvse.errors import DataError, NoCaptionsError, RecipeError, TrainingError
from openvse.evaluation.embed import Member, drawn_for_bank, embed_corpus, make_bank
from openvse.evaluation.metrics import chance_metrics
from openvse.evaluation.ranking import ALONE, Processes
from openvse.evaluation.report import evaluate_sets
from openvse.features.store import FeatureStore
from openvse.model.base import Model
from openvse.model.start import Start
from openvse.model.two_tower import TwoTower
from openvse.objectives.base import Objective
from openvse.registry import Registry
from openvse.retrieval.build import build_model, build_objective
from openvse.retrieval.closed_form import LEAST_IMAGES, can_adapt, solve
from openvse.retrieval.evaluate import CountedCorpus, count_scores
from openvse.retrieval.names import LEAST_CAPTIONED, NONE, class_names, model_without_captions, names_of
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.specs.model import Part, TwoTowerSpec
from openvse.training.inputs import (
    AUTO,
    RunInputs,
    check_stores,
    count_words,
    data_of,
    drawn,
    open_features,
    open_text_features,
    small_split_warning,
    source_of,
    spread,
    with_phases_for,
)
from openvse.training.records import EQUAL_EMBEDDINGS
from openvse.training.task import Step, Task
from openvse.types import Batch, EmbeddingSet, FeatureSource, ScoredBatch, with_places


def gather_batch(
    images: EmbeddingSet,
    texts: EmbeddingSet,
    positives: Bool[Tensor, "I T"],
    image_keys: Int[Tensor, "I"],
    partners: Int[Tensor, "R 2"] | None = None,
) -> tuple[EmbeddingSet, EmbeddingSet, Bool[Tensor, "J U"]]:
    """Join the images, texts and positives of all processes, by rank. With one process, return the arguments.

    Every process computes the whole loss. The backward pass adds the gradients of all processes. The mean that data
    parallelism takes over processes then gives the gradient of this one loss.

    Args:
        image_keys: a number for each image, which is the same in all processes. If two processes hold an image, it is a
            positive of its texts in both.
        partners: (image key, row of the local text) for every relevant pair with an image of any process. None if the
            local positives are all.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return images, texts, positives
    if partners is None:
        rows, columns = positives.nonzero(as_tuple=True)
        partners = torch.stack((image_keys[rows], columns), dim=1)
    of_image = _gather_rows(image_keys).unsqueeze(1) == partners[:, 0]  # [all I, R]
    of_text = partners[:, 1].unsqueeze(1) == torch.arange(len(texts), device=partners.device)  # [R, T]
    local = of_image.float() @ of_text.float() > 0
    everywhere = _gather_rows(local.T.contiguous()).T
    return _gather_set(images), _gather_set(texts), everywhere


def _gather_set(embedded: EmbeddingSet) -> EmbeddingSet:
    return _widened(embedded).map(_gather_rows)


def _widened(embedded: EmbeddingSet) -> EmbeddingSet:
    """Pad to the largest number of embeddings per item in any process, because gathering needs equal shapes."""
    most = torch.tensor([embedded.mask.shape[1]], device=embedded.mask.device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    source, local = embedded.source, embedded.local
    wide = replace(embedded, source=None, local=None).map(lambda each: with_places(each, int(most)))
    return replace(wide, source=source, local=None if local is None else _widened(local))


def _gather_rows(rows: Tensor) -> Tensor:
    """Concatenate the rows of all processes. They are padded meanwhile, because gathering needs equal shapes."""
    count = torch.tensor([len(rows)], device=rows.device)
    counts = [torch.zeros_like(count) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    sizes = [int(c) for c in counts]
    padded = torch.cat([rows, rows.new_zeros((max(sizes) - len(rows), *rows.shape[1:]))])
    wire = padded.to(torch.uint8) if padded.dtype == torch.bool else padded
    parts: Tensor = _AllGather.apply(wire)  # type: ignore[no-untyped-call]
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)]).to(rows.dtype)


class _AllGather(torch.autograd.Function):
    """Stacks the tensors of all processes. The gradient of each part is summed over all processes."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        """Return ``[processes, ...]``."""
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient of this process's part."""
        total = gradient.contiguous()
        dist.all_reduce(total)
        return total[dist.get_rank()]


_logger = logging.getLogger(__name__)


class RetrievalTask(Task[Batch]):
    """Trains a retrieval model with an objective for each phase, from images and texts or from their stores."""

    unit = "pairs"
    collapse: ClassVar[str] = EQUAL_EMBEDDINGS

    model: TwoTower
    objectives: Sequence[Objective]

    def __init__(
        self,
        recipe: RetrievalRecipe,
        model: TwoTower,
        objectives: Sequence[Objective],
        corpus: Corpus,
        features: FeatureSource | None,
        text_features: FeatureStore | None,
        accelerator: Accelerator,
    ) -> None:
        training = corpus.split("train")
        images = image_loader(model.image.encoder.backbone, training, features, augment=recipe.data.random_views)
        texts = text_loader(model.text.encoder, training.captions, text_features)
        dataset = PairDataset(training, images, texts)
        super().__init__(recipe, model, objectives, dataset, data_of(corpus), accelerator)
        self.metric = recipe.training.select_by or "rsum"
        if recipe.data.captions_per_image is not None:
            self.unit = "images"
            self._drawn = PairsOfImages(training.relevance, recipe.data.captions_per_image)
        validation = corpus.split("validation")
        if recipe.training.validation_images is not None:
            validation = validation.select(spread(len(validation), recipe.training.validation_images))
        self._learned, self.validation = training, validation
        self.features, self.text_features = features, text_features
        self._chance = chance_metrics(validation.relevance)
        self._counted: CountedCorpus | None = None
        self.splits = {
            "train": SplitData.of_pairs(training, ordered=True),
            "validation": SplitData.of_pairs(validation, ordered=False),
        }

    def step(self, wrapped: nn.Module, batch: Batch, phase: int) -> Step:
        """Embed, gather over processes, score, and compute the objective of the phase."""
        objective, batch = self.objectives[phase], batch.copied(self.recipe.data.copies)
        images, texts = wrapped(batch.images, batch.texts)
        images, texts, positives = gather_batch(images, texts, batch.positives, batch.image_keys, batch.partners)
        scores, attended = self.model.similarity(images, texts), partial(self.model.similarity.attended, images, texts)
        scored = ScoredBatch(scores, positives, images, texts, attended)
        return Step(
            objective(scored),
            batch.description,
            at_collapse=lambda: objective.at_collapse(scored),
            diagnostics=lambda: objective.diagnostics(scored),
        )

    def validate(self) -> dict[str, float]:
        together = Processes(self.accelerator.process_index, self.accelerator.num_processes)
        return self.rank(self.model, self.features, self.text_features, together)

    def seen_by(self, provenance: Mapping[str, Any]) -> Seen:
        return seen_in_training(provenance, self.validation)

    def validate_start(self, start: Model) -> dict[str, float]:
        """Rank the validation split by the start, from the stores that its encoders can read."""
        if not isinstance(start, TwoTower):
            raise TrainingError(f"it {start.purpose}, so its task differs")
        return self.rank(start.to(self.model.device), *self._stores_of(start))

    def _stores_of(self, model: TwoTower) -> tuple[FeatureSource | None, FeatureStore | None]:
        """Return the stores of the run that the encoders of another model can read."""
        image, text = self.model.image.encoder, self.model.text.encoder
        features = self.features if model.image.encoder.fingerprint in (None, image.fingerprint) else None
        return features, self.text_features if _same_states(model.text.encoder, text) else None

    def finish(self, model: Model, folder: Path) -> None:
        """Give the best model its query bank, if it scores a pair by embeddings and there are enough images."""
        if not isinstance(model, TwoTower) or not model.indexable or model.query_bank is not None:
            return
        features, texts = self._stores_of(model)
        embedded = embed_corpus(model, drawn_for_bank(self._learned), features, text_features=texts)
        member = Member(embedded.images, embedded.texts, model.similarity)
        try:
            make_bank(model.fingerprint, member, embedded.corpus).write(folder)
        except DataError as error:
            _logger.info("%s keeps no query bank: %s", folder, error)

    def rank(
        self,
        model: TwoTower,
        features: FeatureSource | None,
        text_features: FeatureStore | None,
        processes: Processes = ALONE,
    ) -> dict[str, float]:
        """Rank the validation split by a model, and keep the other results of its report."""
        embedded = embed_corpus(model, self.validation, features, text_features=text_features, processes=processes)
        member = Member(embedded.images, embedded.texts, model.similarity)
        self._counted = count_scores(member, embedded.corpus)
        report = evaluate_sets(
            member.images,
            member.texts,
            embedded.corpus.relevance,
            member.similarity,
            see=None if self._counted is None else self._counted.counts.see,
            processes=processes,
        )
        self.intervals, self.replicates = report.intervals, report.replicates
        return dict(report.metrics)

    def calibrate(self, model: Model) -> None:
        """Fit the curve from score to probability to the scores of the last validation, if it had enough images."""
        if isinstance(model, TwoTower):
            model.calibration = None if self._counted is None else self._counted.fit(model)

    def summary(self, metrics: Mapping[str, float]) -> str:
        """Return RSUM, its chance level, and both R@1."""
        chance = f"(chance {self._chance['rsum']:.1f})"
        return f"rsum {metrics['rsum']:5.1f} {chance}  R@1 i2t {metrics['i2t_r1']:4.1f} t2i {metrics['t2i_r1']:4.1f}"


def _same_states(one: TextEncoder, other: TextEncoder) -> bool:
    """Return whether two text encoders have the same stored states."""
    both = isinstance(one, TransformersText) and isinstance(other, TransformersText)
    return both and one.fingerprint == other.fingerprint


def _set_chunks(model: TwoTower, size: int | None) -> None:
    """Let training steps embed a batch in chunks. Raise RecipeError if a part normalises over the batch."""
    model.train()
    for name, module in model.named_modules():
        if size is not None and isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise RecipeError(
                f"recipe: training.chunk_size: {name} normalises over the batch, but a chunk is smaller: leave "
                f"chunk_size out, or choose another part (such as projection: linear in place of residual_mlp)"
            )
    model.chunk_size = size


def open_data(recipe: RetrievalRecipe) -> Corpus:
    """Open all splits of the data of a recipe, with the training images that ``data.limit`` leaves."""
    corpus = open_corpus(
        source_of(recipe),
        require_images=recipe.data.features in (None, AUTO),
        allow_outside=recipe.data.allow_outside,
        merge_captions=recipe.data.merge_captions,
        questions=False,
    )
    if recipe.data.limit is None:
        return corpus
    labels = np.asarray(corpus.split_labels())
    learned = drawn(np.flatnonzero(labels == "train"), recipe)
    positions = np.sort(np.concatenate([np.flatnonzero(labels != "train"), learned]))
    return replace(corpus, splits=tuple(labels.tolist())).select(positions)


def build_run(recipe: RetrievalRecipe, corpus: Corpus, start: Start | None = None) -> tuple[TwoTower, list[Objective]]:
    """Build the model of a recipe and the objective of each phase. Refuse parts and data that do not fit together."""
    model = build_model(recipe, captions=corpus.split("train").captions, seed=recipe.seed, start=start)
    objectives = [build_objective(recipe, phase, model=model) for phase in recipe.training.phases]
    terms = [term for objective in objectives for term in objective.terms.values()]
    shows = [name for name in ("local", "unscaled") if any(getattr(term, f"needs_{name}") for term in terms)]
    model.image.shows = model.text.shows = shows
    check_stores(recipe, corpus, model.image.encoder, model.text.encoder)
    _set_chunks(model, recipe.training.chunk_size)
    return model, objectives


def open_retrieval(recipe: RetrievalRecipe, inputs: RunInputs) -> RetrievalTask | TwoTower:
    """Open data and features, and build model and objectives.

    If a folder has too few captions to learn from, and the recipe knows names, return the model that these make alone.
    """
    alone = names_of(recipe) != NONE and Path(source_of(recipe)).is_dir() and not inputs.goes_on
    try:
        corpus = open_data(recipe)
    except NoCaptionsError:
        if not alone:
            raise
        return model_without_captions(recipe, inputs, 0)
    if alone and len(corpus) < LEAST_CAPTIONED:
        with suppress(RecipeError):  # a backbone without names learns from few captions
            return model_without_captions(recipe, inputs, len(corpus))
    training = corpus.split("train")
    recipe = with_phases_for(recipe, len(training), inputs.watcher)
    model, objectives = build_run(recipe, corpus, inputs.start)  # refused before hours of extraction
    inputs.begin(model)
    coverage = count_words(model.text.encoder, training.captions, inputs, "caption")
    features = open_features(recipe, model.image.encoder, corpus, inputs)
    corpus = with_features(corpus, features)
    if shared := SharedTexts.of(corpus.relevance).describe():
        inputs.watcher.note(shared)
    for problem in (*corpus.problems, *leakage_between_splits(corpus)):
        inputs.watcher.warn(problem)
    training = corpus.split("train")
    texts = [*training.captions, *corpus.split("validation").captions]
    text_features = open_text_features(recipe, model.text.encoder, texts, inputs)
    task = RetrievalTask(recipe, model, objectives, corpus, features, text_features, inputs.accelerator)
    task.coverage = coverage
    task.advice = more_captions(len(training)) if alone else ""
    if isinstance(recipe.start, Part):
        task.start = build_part(STARTS, recipe.start, "start").begin(task, training, inputs)
    elif inputs.start is not None and can_adapt(model):
        task.start = ClosedForm().begin(task, training, inputs)
    elif recipe.start is None and not inputs.goes_on:
        task.baseline = linear_baseline(task, training)
        if task.baseline:
            inputs.watcher.note(f"a linear map, in closed form: {task.summary(task.baseline)}")
    if warning := small_split_warning(len(task.validation), "images", "a recall"):
        inputs.watcher.warn(warning)
    return task


MOST_FOR_BASELINE = 10_000
"""Number of images for the linear map that is a run's baseline. Reading more would delay its first step."""


def linear_baseline(task: RetrievalTask, training: Corpus) -> dict[str, float]:
    """Return the metrics of the closed form on validation from stored features, empty if a side has none."""
    if task.features is None or task.text_features is None or len(training) < LEAST_IMAGES:
        return {}
    tree = TwoTowerSpec.of(task.recipe.model_dump(mode="json")).model_dump(mode="json")
    for side, power in (("image", 0.5), ("text", 1.0)):
        tree[side]["encoder"] |= {"projection": "none"}
        tree[side]["encoder"].pop("global_vector", None)
        tree[side]["aggregator"] = {"name": "pooled_linear", "power": power}
    model = build_model(TwoTowerSpec.of(tree | {"similarity": "set_max"}), captions=training.captions)
    solve(model, training.select(spread(len(training), MOST_FOR_BASELINE)), task.features, task.text_features)
    return task.rank(model, task.features, task.text_features)


class ClosedForm:
    """The best linear map from the images of the run to their sentences, solved in closed form.

    Args:
        names: the names of the classes of the backbone, from which the map begins: ``auto``, ``none``, or a text file
            with a sentence for each class. See ``class_names``.
    """

    name: ClassVar[str] = "closed_form"

    def __init__(self, *, names: str = AUTO) -> None:
        self.names = names

    def begin(self, task: RetrievalTask, training: Corpus, inputs: RunInputs) -> Start:
        """Give the model of a task the weights of the map, report its quality, and return a copy as its start.

        A run that continues has the copy in its folder.
        """
        name = ", ".join(dict.fromkeys([str(task.recipe.start_name), self.name]))
        if inputs.start is not None:
            if inputs.goes_on:
                return replace(inputs.start, name=name)
            inputs.watcher.note(f"{inputs.start.name} without training: {task.summary(task.validate())}")
        names = class_names(self.names, task.model)
        regression = solve(task.model, training, task.features, task.text_features, names)
        inputs.watcher.note(
            f"start: {self.name}, a linear map from {len(training):,} images to their sentences, which explains "
            f"{max(regression.explained, 0):.0%} of the sentences of left-out images (ridge {regression.ridge:.2g}"
            + (f", names of {len(names):,} classes with the weight {regression.scale:.2f})" if names else ")")
        )
        start = copy.deepcopy(task.model)
        for aggregator in (start.image.aggregator, start.text.aggregator):
            if isinstance(aggregator, Beside):
                aggregator.share.zero_()
        return Start(name, start, inputs.folder)


STARTS: Registry[ClosedForm] = Registry("start", {ClosedForm.name: ClosedForm})
"""The starts that are made from the data of a run, by the names in a recipe's ``start: {name: ...}``."""
