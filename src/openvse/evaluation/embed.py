"""Embedding a corpus: each image and each caption once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from openvse.batches import (
    PlacedInputs,
    image_batches,
    image_loader,
    own_features,
    text_batches,
    with_features,
)
from openvse.corpus import Corpus
from openvse.errors import DataError
from openvse.evaluation.ensemble import Member
from openvse.model import TwoTower, embed
from openvse.types import EmbeddingSet, FeatureSource, OnProgress


@dataclass(frozen=True)
class EmbeddedCorpus:
    """The embeddings of a corpus; ``corpus`` leaves out the images that could not be read, and their texts."""

    images: EmbeddingSet
    texts: EmbeddingSet
    corpus: Corpus


def embed_corpus(
    model: TwoTower,
    corpus: Corpus,
    features: FeatureSource | None = None,
    *,
    batch_size: int = 128,
    progress: OnProgress | None = None,
) -> EmbeddedCorpus:
    """Embed every image and caption of a corpus.

    Args:
        model: used in evaluation mode and left in the mode it was in.
        corpus: what to embed.
        features: stored local features; without them the corpus's own are read, or the images decoded.
        batch_size: items at a time.
        progress: called after every batch.

    Raises:
        DataError: not one image could be read.
        StoreError: the store lacks an image.
    """
    features = own_features(corpus, model.image.encoder.backbone) if features is None else features
    corpus = with_features(corpus, features)
    kept: list[np.ndarray] = []

    def images() -> Iterator[PlacedInputs]:
        for positions, inputs in image_batches(
            image_loader(model.image.encoder.backbone, corpus, features), batch_size
        ):
            kept.append(positions)
            yield positions, inputs

    told = _told(images(), "embedding images", len(corpus), progress)
    embedded = embed(model.image, told, model.device)
    readable = np.sort(np.concatenate(kept))
    corpus = corpus if len(readable) == len(corpus) else corpus.select(readable)
    texts = text_batches(model.text.encoder.tokenize(corpus.captions), batch_size)
    told = _told(texts, "embedding sentences", len(corpus.captions), progress)
    return EmbeddedCorpus(embedded, embed(model.text, told, model.device), corpus)


def _told(
    batches: Iterator[PlacedInputs], work: str, total: int, progress: OnProgress | None
) -> Iterator[PlacedInputs]:
    """Yield batches, and say how many items are done when the next batch is asked for."""
    done = 0
    for positions, inputs in batches:
        yield positions, inputs
        done += len(positions)
        if progress is not None and done < total:
            progress(work, done, total)
    if progress is not None:  # items that could not be read are dealt with, too
        progress(work, total, total)


@dataclass(frozen=True)
class EmbeddedEnsemble:
    """A corpus as each of several models embeds it, in the same order; ``corpus`` holds what all could read."""

    members: tuple[Member, ...]
    corpus: Corpus


def embed_ensemble(
    models: Sequence[TwoTower],
    corpus: Corpus,
    features: Sequence[FeatureSource | None],
    *,
    batch_size: int = 128,
    progress: OnProgress | None = None,
) -> EmbeddedEnsemble:
    """Embed a corpus once with each model; images that one of their stores lacks are left out for all.

    Args:
        models: the models to average.
        corpus: what to embed.
        features: each model's stored local features, or None for the images.
        batch_size: items at a time.
        progress: called after every batch.

    Raises:
        DataError: there is no model, or one cannot read an image that another has read.
        StoreError: a store has none of the images that the others have.
    """
    if not models:
        raise DataError("no model is given, so there is nothing to average: name at least one")
    for store in features:
        corpus = with_features(corpus, store)
    members: list[Member] = []
    for model, store in zip(models, features, strict=True):
        embedded = embed_corpus(model, corpus, store, batch_size=batch_size, progress=progress)
        if members and len(embedded.corpus) < len(corpus):
            raise DataError(
                f"model {len(members) + 1} can read {len(embedded.corpus)} of the {len(corpus)} images that the "
                f"models before it read: name it first, or extract its features from the same images"
            )
        corpus = embedded.corpus
        members.append(Member(embedded.images, embedded.texts, model.similarity))
    return EmbeddedEnsemble(tuple(members), corpus)
