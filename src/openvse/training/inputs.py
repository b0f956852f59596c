"""What every run reads: its source, and stored features, which it may have to extract first."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from jaxtyping import Int

from openvse.batches import own_features
from openvse.corpus import Corpus, training_sample
from openvse.datasets import FACTS
from openvse.encoders import Coverage, ImageEncoder, TextEncoder, TokenStatesEncoder
from openvse.errors import RecipeError
from openvse.features import (
    ExtractionProgress,
    FeatureStore,
    extract_features,
    extract_text_features,
    open_store,
)
from openvse.specs import RunRecipe
from openvse.training.records import Watcher
from openvse.types import FeatureSource

_logger = logging.getLogger(__name__)

AUTO = "auto"


@dataclass(frozen=True)
class RunInputs:
    """What a run has besides its recipe.

    Attributes:
        folder: of the run.
        accelerator: device, precision and processes.
        watcher: receives warnings of what was skipped.
        on_extraction: receives the progress of an extraction of features.
    """

    folder: Path
    accelerator: Accelerator
    watcher: Watcher
    on_extraction: Callable[[ExtractionProgress], None] | None = None


def source_of(recipe: RunRecipe) -> str:
    """Return where the data lie; raise RecipeError if the recipe does not say."""
    if not recipe.data.source:
        raise RecipeError(
            "recipe: data.source is not set: add data.source=FOLDER (or flickr8k:FOLDER, file.csv)"
        )
    return recipe.data.source


def open_features(
    recipe: RunRecipe, encoder: ImageEncoder, corpus: Corpus, inputs: RunInputs
) -> FeatureSource | None:
    """Open the recipe's feature store; ``auto`` first extracts what it lacks into the run's folder.

    Where the recipe names none, the data set's own features are read, if it has some and the encoder makes none.

    Raises:
        StoreError: no store, or one that another encoder made; no store of a folder fits, or several do.
        RecipeError: ``auto`` with a backbone that trains, whose features would be out of date after one step.
    """
    where = recipe.data.features
    own = own_features(corpus, encoder.backbone) if where in (None, AUTO) else None
    if where is None or own is not None:
        return own
    if where != AUTO:
        return open_store(Path(where), encoder)
    if encoder.fine_tune:
        raise RecipeError(
            "recipe: data.features: auto stores what a frozen backbone yields: set fine_tune: false"
        )
    store, accelerator = inputs.folder / "features", inputs.accelerator
    images = list(zip(corpus.image_ids, corpus.image_paths, strict=True))
    if accelerator.is_main_process:
        report = extract_features(
            encoder.backbone, images, store, device=accelerator.device, progress=inputs.on_extraction
        )
        for _, reason in report.failed:
            _logger.warning("skipped an image: %s", reason)
    accelerator.wait_for_everyone()
    return FeatureStore.open(store, encoder.fingerprint)


def open_text_features(
    recipe: RunRecipe, encoder: TextEncoder, texts: Sequence[str], inputs: RunInputs
) -> FeatureStore | None:
    """Open the recipe's store of token states; ``auto`` first extracts what it lacks into the run's folder.

    None means that the encoder reads token ids: the recipe says so, or with ``auto`` it cannot do with stored states.

    Args:
        recipe: says in ``data.text_features`` what is wanted.
        encoder: whose text model makes the states.
        texts: all that the run reads.
        inputs: of the run.

    Raises:
        StoreError: no store, or one that another text model made; no store of a folder fits, or several do.
        RecipeError: a store is named, and the encoder cannot do with stored states.
    """
    where = recipe.data.text_features
    if where is None:
        return None
    if not isinstance(encoder, TokenStatesEncoder):
        reason: str | None = (
            f"text.encoder {recipe.text.encoder.name} has no text model whose states could be stored"
        )
    else:
        reason = encoder.why_not_stored()
    if not isinstance(encoder, TokenStatesEncoder) or reason is not None:
        if where != AUTO:
            raise RecipeError(f"recipe: data.text_features names a store, but {reason}")
        return None
    if where != AUTO:
        return open_store(Path(where), encoder)
    store, accelerator = inputs.folder / "text_features", inputs.accelerator
    if accelerator.is_main_process:
        extract_text_features(encoder, texts, store, device=accelerator.device, progress=inputs.on_extraction)
    accelerator.wait_for_everyone()
    return FeatureStore.open(store, encoder.fingerprint)


def count_words(
    encoder: TextEncoder, sentences: Sequence[str], inputs: RunInputs, called: str
) -> Coverage | None:
    """Count what a text encoder knows of the training sentences, and tell whoever watches the run.

    Args:
        encoder: made for these sentences.
        sentences: all of them.
        inputs: whose watcher is told.
        called: what one sentence is called.
    """
    coverage = encoder.coverage(sentences)
    if coverage is not None:
        inputs.watcher.note(coverage.describe(called))
    return coverage


def data_of(corpus: Corpus) -> dict[str, Any]:
    """Return what a model's provenance says of its data: the name, images of each split, terms, training images."""
    labels = np.asarray(corpus.split_labels())
    splits = {split: count for split, count in Counter(labels.tolist()).items() if split}
    facts = FACTS.get(corpus.name)
    licence = {"licence": facts.licence} if facts else {}
    trained_on = training_sample(corpus.select(np.flatnonzero(labels == "train")))
    return {"name": corpus.name, "splits": splits, **licence, "trained_on": trained_on}


def spread(count: int, wanted: int) -> Int[np.ndarray, "B"]:
    """Return so many of ``count`` positions, evenly spread; all of them where there are not more."""
    wanted = min(wanted, count)
    return np.arange(wanted) * count // wanted
