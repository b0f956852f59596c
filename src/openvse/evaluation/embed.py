"""Embedding a corpus: each image and each caption once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from openvse.batches.loaders import (
    PlacedInputs,
    image_batches,
    image_loader,
    own_features,
    ready_for,
    text_batches,
    text_loader,
    with_features,
)
from openvse.corpus import Corpus
from openvse.errors import DataError, ModelError
from openvse.evaluation.ensemble import Member
from openvse.evaluation.processes import ALONE, Processes
from openvse.features.store import FeatureStore
from openvse.media.listing import skipped
from openvse.model.tower import Tower
from openvse.model.two_tower import TwoTower, embed
from openvse.types import EmbeddingSet, FeatureSource, OnProgress


@dataclass(frozen=True)
class EmbeddedCorpus:
    """The embeddings of a corpus. ``corpus`` lacks the unreadable images and their texts. Its problems name them."""

    images: EmbeddingSet
    texts: EmbeddingSet
    corpus: Corpus


def embed_corpus(
    model: TwoTower,
    corpus: Corpus,
    features: FeatureSource | None = None,
    *,
    text_features: FeatureStore | None = None,
    batch_size: int = 128,
    processes: Processes = ALONE,
    progress: OnProgress | None = None,
) -> EmbeddedCorpus:
    """Embed every image and caption of a corpus.

    Args:
        model: the model. It runs in evaluation mode and then returns to its previous mode.
        features: stored local features. Without them, the corpus's own are read, or the images are decoded.
        text_features: stored token states of the captions. Without them, the text model reads the captions.
        batch_size: the number of items at a time.
        processes: the processes that share the work. All of them get all embeddings.
        progress: a function to call after every batch.

    Raises:
        DataError: no image could be read.
        ModelError: an embedding holds NaN or infinite numbers.
        StoreError: the store lacks an image or a caption.
    """
    features = own_features(corpus, model.image.encoder.backbone) if features is None else features
    corpus = with_features(corpus, features)
    mine = {"rank": processes.rank, "num_processes": processes.count}
    loader = image_loader(model.image.encoder.backbone, corpus, features)
    ready = ready_for(model.device, image_batches(loader, batch_size, **mine))
    counted = _counted(ready, "embedding images", len(corpus), progress)
    readable, embedded = _embed(model.image, counted, model.device, processes)
    if unread := sorted({*range(len(corpus))} - {*readable.tolist()}):
        bad = [corpus.image_ids[position] for position in unread]
        problems = skipped(bad, f"of {len(corpus):,} images, which cannot be used")
        corpus = replace(corpus.select(readable), problems=(*corpus.problems, *problems))
    captions = text_loader(model.text.encoder, corpus.captions, text_features)
    ready = ready_for(model.device, text_batches(captions, batch_size, **mine))
    counted = _counted(ready, "embedding sentences", len(corpus.captions), progress)
    _, texts = _embed(model.text, counted, model.device, processes)
    _refuse_not_finite(embedded, corpus.image_ids, "image")
    _refuse_not_finite(texts, corpus.captions, "caption")
    return EmbeddedCorpus(embedded, texts, corpus)


def _embed(
    tower: Tower[Any], batches: Iterator[PlacedInputs], device: torch.device, processes: Processes
) -> tuple[Int[np.ndarray, "B"], EmbeddingSet]:
    """Embed the batches of this process. Return the items of all processes in the order of their positions."""
    seen: list[Int[np.ndarray, "b"]] = []

    def noted() -> Iterator[PlacedInputs]:
        for positions, inputs in batches:
            seen.append(positions)
            yield PlacedInputs(positions, inputs)

    own = noted()
    first = next(own, None)
    mine = None if first is None else (embed(tower, chain([first], own), device), np.sort(np.concatenate(seen)))
    if not (parts := [part for part in processes.gather(mine) if part is not None]):
        raise DataError("there is nothing to embed: give at least one item that can be read")
    if len(parts) == 1:
        return parts[0][1], parts[0][0]
    positions = np.concatenate([places for _, places in parts])
    order = np.argsort(positions, kind="stable")
    return positions[order], EmbeddingSet.concatenate([part for part, _ in parts])[torch.from_numpy(order)]


def _refuse_not_finite(embedded: EmbeddingSet, names: Sequence[str], kind: str) -> None:
    """Raise ModelError, which names the first item, if an embedding is not finite."""
    bad = (~embedded.vectors.isfinite().all(dim=2) & embedded.mask).any(dim=1).nonzero().flatten().tolist()
    if bad:
        raise ModelError(
            f"the embeddings of {len(bad)} of {len(names)} {kind}s hold NaN or infinite numbers (first: "
            f"{names[bad[0]]!r}): check the model's weights and the features"
        )


def _counted(
    batches: Iterable[PlacedInputs], work: str, total: int, progress: OnProgress | None
) -> Iterator[PlacedInputs]:
    """Yield batches, and report the number of finished items when the next batch is requested."""
    done = 0
    for positions, inputs in batches:
        yield PlacedInputs(positions, inputs)
        done += len(positions)
        if progress is not None and done < total:
            progress(work, done, total)
    if progress is not None:  # items that could not be read count as done, too
        progress(work, total, total)


@dataclass(frozen=True)
class EmbeddedEnsemble:
    """The embeddings of a corpus by several models, in the same order. ``corpus`` has the items that all could read."""

    members: tuple[Member, ...]
    corpus: Corpus


def embed_ensemble(
    models: Sequence[TwoTower],
    corpus: Corpus,
    features: Sequence[FeatureSource | None],
    *,
    text_features: Sequence[FeatureStore | None] | None = None,
    batch_size: int = 128,
    processes: Processes = ALONE,
    progress: OnProgress | None = None,
) -> EmbeddedEnsemble:
    """Embed a corpus with each model. If one of them cannot read an image, or its store lacks it, all leave it out.

    Args:
        models: the models to average.
        features: the stored local features for each model, or None for the images.
        text_features: the stored token states for each model, or None for captions. Without it, all read the captions.
        batch_size: the number of items at a time.
        processes: the processes that share the work.
        progress: a function to call after every batch.

    Raises:
        DataError: there are no models, or no image can be read.
        StoreError: a store has no image that the others have.
    """
    if not models:
        raise DataError("no model is given, so there is nothing to average: name at least one")
    for store in features:
        corpus = with_features(corpus, store)
    members: list[Member] = []
    embed_by = partial(embed_corpus, batch_size=batch_size, processes=processes, progress=progress)
    states = [None] * len(models) if text_features is None else text_features
    for model, store, texts in zip(models, features, states, strict=True):
        embedded = embed_by(model, corpus, store, text_features=texts)
        if members and len(embedded.corpus) < len(corpus):  # this model cannot read what the others have read
            again = partial(embed_ensemble, batch_size=batch_size, processes=processes, progress=progress)
            return again(models, embedded.corpus, features, text_features=text_features)
        corpus = embedded.corpus
        members.append(Member(embedded.images, embedded.texts, model.similarity))
    return EmbeddedEnsemble(tuple(members), corpus)
