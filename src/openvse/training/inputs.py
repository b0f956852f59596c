"""The inputs of every run: its data, its stored features, extracted first if needed, and notes on both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from accelerate import Accelerator
from jaxtyping import Int

from openvse.batches.pairs import own_features
from openvse.corpus import Corpus
from openvse.corpus.trained_on import training_sample
from openvse.datasets.registry import DATASETS
from openvse.encoders import ImageEncoder, TextEncoder
from openvse.encoders.transformers_text import states_can_be_stored
from openvse.errors import RecipeError
from openvse.features.extract import extract_features, extract_text_features
from openvse.features.store import FeatureStore, open_store
from openvse.model.base import Model
from openvse.model.start import Start
from openvse.pipeline import WorkProgress, tell_skipped
from openvse.specs import RunRecipe
from openvse.tokenization.vocabulary import Coverage
from openvse.training.records import Watcher
from openvse.types import FeatureSource

AUTO = "auto"

RecipeT = TypeVar("RecipeT", bound=RunRecipe)


@dataclass(frozen=True)
class RunInputs:
    """The inputs of a run in addition to its recipe.

    A run that ``goes_on`` from a checkpoint knows the measurements before its first step.
    """

    folder: Path
    accelerator: Accelerator
    watcher: Watcher
    on_extraction: Callable[[WorkProgress], None] | None = None
    start: Start | None = None
    goes_on: bool = False

    def begin(self, model: Model) -> None:
        """Copy the weights of the start to a new model, and report the origin of each part to the watcher."""
        if self.start is not None:
            self.watcher.note(f"start: {self.start.name}, model {self.start.model.fingerprint}")
            for origin in self.start.give(model):
                self.watcher.note(f"  {origin}")


def source_of(recipe: RunRecipe) -> str:
    """Return the source of the data. Raise RecipeError if the recipe does not name one."""
    if not recipe.data.source:
        raise RecipeError("recipe: data.source is not set: add data.source=FOLDER (or flickr8k:FOLDER, file.csv)")
    return recipe.data.source


def with_phases_for(recipe: RecipeT, count: int, watcher: Watcher) -> RecipeT:
    """Return a recipe without the phases that need more than ``count`` training images, and say which are left out."""
    phases = recipe.training.phases
    left = tuple(phase for phase in phases if phase.least_images <= count)
    if not left and recipe.start is None:
        raise RecipeError(
            f"recipe: training.phases has nothing to do with {count:,} images for training: add a phase, lower its "
            f"least_images, or name a start"
        )
    if len(left) < len(phases):
        needed = sorted({phase.least_images for phase in phases if phase.least_images > count})
        least = " and ".join(f"{each:,}" for each in needed)
        watcher.note(
            f"{count:,} images for training are too few to train networks, which needs {least}, so the model is its "
            f"start. This is as intended"
            if not left
            else f"{count:,} images for training are too few for {len(phases) - len(left)} of {len(phases)} phases, "
            f"which need {least}"
        )
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"phases": left})})


def check_stores(recipe: RunRecipe, corpus: Corpus, image: ImageEncoder | None, text: TextEncoder) -> None:
    """Refuse a store that the recipe needs or names, if it is not there or does not fit, before anything is written."""
    _stated_states(recipe, text)
    if image is not None:
        _stated_features(recipe, image, corpus)


def _stated_features(recipe: RunRecipe, encoder: ImageEncoder, corpus: Corpus) -> FeatureSource | None:
    if (where := recipe.data.features) in (None, AUTO):
        return own_features(corpus, encoder.backbone)
    return open_store(Path(where), encoder)


def _stated_states(recipe: RunRecipe, encoder: TextEncoder) -> FeatureStore | None:
    if (where := recipe.data.text_features) in (None, AUTO):
        return None
    if not states_can_be_stored(encoder):
        raise RecipeError(f"recipe: text.encoder cannot read data.text_features: {encoder.why_not_stored()}")
    return open_store(Path(where), encoder)


def open_features(recipe: RunRecipe, encoder: ImageEncoder, corpus: Corpus, inputs: RunInputs) -> FeatureSource | None:
    """Open the recipe's feature store. ``auto`` first extracts missing features into the folder of the run.

    If the recipe names no store, the data set's own features are used, if it has some and the encoder makes none. With
    ``auto`` and a backbone that trains, or that the start has fine-tuned, there is no store, and the images are read.
    """
    stated = _stated_features(recipe, encoder, corpus)
    if stated is not None or recipe.data.features != AUTO:
        return stated
    if encoder.fine_tune:
        inputs.watcher.note("features are not stored, as image.encoder.fine_tune is true: each epoch reads the images")
        return None
    store, accelerator = inputs.folder / "features", inputs.accelerator
    images = list(zip(corpus.image_ids, corpus.image_paths, strict=True))
    if accelerator.is_main_process:
        report = extract_features(
            encoder.backbone, images, store, device=accelerator.device, progress=inputs.on_extraction
        )
        tell_skipped(report.failed)
    accelerator.wait_for_everyone()
    return FeatureStore(store, encoder.fingerprint)


def open_text_features(
    recipe: RunRecipe, encoder: TextEncoder, texts: Sequence[str], inputs: RunInputs
) -> FeatureStore | None:
    """Open the recipe's store of token states. ``auto`` first extracts the states of all texts into the run's folder.

    None means that the encoder reads token ids, as the recipe says, or ``auto`` and stored states do not suit it.
    """
    if recipe.data.text_features != AUTO or not states_can_be_stored(encoder):
        return _stated_states(recipe, encoder)
    store, accelerator = inputs.folder / "text_features", inputs.accelerator
    if accelerator.is_main_process:
        extract_text_features(encoder, texts, store, device=accelerator.device, progress=inputs.on_extraction)
    accelerator.wait_for_everyone()
    return FeatureStore(store, encoder.fingerprint)


def count_words(encoder: TextEncoder, sentences: Sequence[str], inputs: RunInputs, called: str) -> Coverage | None:
    """Count how many words of the training sentences a new text encoder knows, and tell the watcher of the run."""
    if (coverage := encoder.coverage(sentences)) is not None:
        inputs.watcher.note(coverage.describe(called))
    return coverage


def data_of(corpus: Corpus) -> dict[str, Any]:
    """Return the data for a model's provenance: name, images of each split, licence, and a sample of the training."""
    labels = np.asarray(corpus.split_labels())
    splits = {split: count for split, count in Counter(labels.tolist()).items() if split}
    facts = DATASETS.facts(corpus.name)
    licence = {"licence": facts.licence} if facts else {}
    trained_on = training_sample(corpus.select(np.flatnonzero(labels == "train")))
    return {"name": corpus.name, "splits": splits, **licence, "trained_on": trained_on}


def drawn(positions: Int[np.ndarray, "I"], recipe: RunRecipe) -> Int[np.ndarray, "b"]:
    """Return the positions of the training images that ``data.limit`` leaves, drawn with the seed, in their order."""
    if recipe.data.limit is None:
        return positions
    return np.sort(np.random.default_rng(recipe.seed).permutation(positions)[: recipe.data.limit])


def spread(count: int, wanted: int) -> Int[np.ndarray, "B"]:
    """Return ``wanted`` of ``count`` positions, evenly spread, or all positions if there are fewer."""
    wanted = min(wanted, count)
    return np.arange(wanted) * count // wanted


ENOUGH = 100
"""Number of items that is enough to give no warning. The interval is then at most 10 points to either side."""


def small_split_warning(count: int, items: str, figure: str) -> str:
    """Return a warning of wide intervals on a small validation split, or "" if the split is large enough."""
    if count >= ENOUGH:
        return ""
    widest = 100 * 1.96 * math.sqrt(0.25 / count)  # of a share of one half, by the normal approximation
    return (
        f"validation has only {count} {items}: the 95 % interval of {figure} reaches up to "
        f"{widest:.0f} points to either side, so smaller differences between epochs or models "
        f"mean nothing: keep at least {ENOUGH} {items} for validation where you can"
    )
