"""Embedding a corpus: each image and each caption once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from openvse.batches.pairs import (
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
from openvse.evaluation.metrics import Metrics
from openvse.evaluation.ranking import ALONE, Processes
from openvse.features.store import FeatureStore
from openvse.functional import at_least_single
from openvse.media.listing import skipped
from openvse.model.two_tower import Tower, TwoTower, embed
from openvse.scoring.hubs import MOST_IMAGES, MOST_TEXTS, BankQueries, QueryBank, beta_of, measure_attraction, penalties
from openvse.similarities import Similarity
from openvse.types import EmbeddingSet, FeatureSource, OnProgress

Scorer = Callable[[EmbeddingSet, EmbeddingSet], Float[Tensor, "I T"]]
"""A similarity: any module or function that scores all pairs."""

_PAIRS_AT_ONCE = 2048


@dataclass(frozen=True)
class Member:
    """One model's embeddings of the items, and the similarity that scores them.

    Attributes:
        images: I embedded images.
        texts: T embedded texts.
        similarity: the function that scores a block of images against a block of texts.
    """

    images: EmbeddingSet
    texts: EmbeddingSet
    similarity: Scorer

    @property
    def device(self) -> torch.device:
        """The device that scores pairs: the similarity's, or for a function the images' device."""
        return self.similarity.device if isinstance(self.similarity, Similarity) else self.images.vectors.device

    @property
    def products(self) -> int:
        """The number of pairs of embeddings behind one score."""
        return self.images.vectors.shape[1] * self.texts.vectors.shape[1]

    def part(self, images: slice, texts: Int[Tensor, "t"]) -> Member:
        """Return some of the images and some of the texts."""
        return replace(self, images=self.images[images], texts=self.texts[texts.to(self.texts.mask.device)])

    def score(self, rows: slice, columns: slice) -> Float[Tensor, "i t"]:
        """Move a block to the device and score it in at least single precision."""
        sides = (some.to(self.device) for some in (self.images[rows], self.texts[columns]))
        return at_least_single(self.similarity(*map(_precise, sides)))

    @torch.inference_mode()
    def score_pairs(
        self, images: Int[Tensor, "P"], texts: Int[Tensor, "P"], count: Callable[[int], None] | None = None
    ) -> Float[Tensor, "P"]:
        """Score listed pairs, some at a time. Each item of such a part is moved to the device once.

        Args:
            images: the image of each pair.
            texts: the text of each pair.
            count: a function to call with the number of pairs that were scored last.

        Raises:
            ModelError: the similarity is a function that scores only whole blocks.
        """
        if not isinstance(self.similarity, Similarity):
            raise ModelError("its similarity scores only whole blocks: give one of pairs, such as fused or set_max")
        parts = []
        for some in zip(torch.split(images, _PAIRS_AT_ONCE), torch.split(texts, _PAIRS_AT_ONCE), strict=True):
            some_images, rows = _distinct(self.images, some[0], self.device)
            some_texts, columns = _distinct(self.texts, some[1], self.device)
            parts.append(at_least_single(self.similarity.pairs(some_images, some_texts, rows, columns)))
            if count is not None:
                count(len(rows))
        return torch.cat(parts)


def mean_scores(members: Sequence[Member], rows: slice, columns: slice) -> Float[Tensor, "i t"]:
    """Average the members' scores of a block: ``s = 1/M sum_m s_m`` (the ensembles of VSE-infinity, Table 2).

    The average is on the device of the first member. Memory holds two blocks at a time for any number of members.
    """
    device = members[0].device
    total = reduce(torch.add, (member.score(rows, columns).to(device) for member in members))
    return total / len(members) if len(members) > 1 else total


def _distinct(
    embedded: EmbeddingSet, positions: Int[Tensor, "P"], device: torch.device | str
) -> tuple[EmbeddingSet, Int[Tensor, "P"]]:
    """Gather each distinct item once, on a device, and return the place of each position among them."""
    distinct, place = torch.unique(positions, return_inverse=True)
    return _precise(embedded[distinct.to(embedded.mask.device)].to(device)), place.to(device)


def _precise(embedded: EmbeddingSet) -> EmbeddingSet:
    """Convert half-precision embeddings to single precision, since coarse scores would make ties."""
    return replace(embedded, vectors=at_least_single(embedded.vectors))


Penalties = tuple[Float[np.ndarray, "_"], Float[np.ndarray, "_"]]
"""The penalties that are subtracted from the scores of each image and of each text."""


@dataclass(frozen=True)
class HubsOut:
    """The metrics with hubs taken out, and the query bank."""

    bank: str
    num_images: int
    num_texts: int
    metrics: Metrics


def drawn_for_bank(corpus: Corpus) -> Corpus:
    """Return the images and captions of a query bank: a part of a corpus, drawn with a fixed seed, in random order."""
    return corpus.select(np.random.default_rng(0).permutation(len(corpus))[:MOST_IMAGES])


def make_bank(model: str, member: Member, drawn: Corpus) -> QueryBank:
    """Return the bank of the model with this fingerprint. Raise DataError if it cannot be halved."""
    pairs, half = drawn.relevance, len(drawn) // 2
    owners = np.zeros(pairs.num_texts, np.int64)
    owners[pairs.texts[::-1]] = pairs.images[::-1]  # they rise, as texts are numbered by their first image
    member = replace(member, texts=member.texts[:MOST_TEXTS])
    middle = int(np.searchsorted(owners[:MOST_TEXTS], half))
    if not (half and 0 < middle < len(member.texts)):
        raise DataError(f"{drawn.name} has too few images with captions for a query bank: give more")
    score, width = _scores(member), len(drawn)
    scores = np.concatenate([score(slice(start, start + 256)) for start in range(0, width, 256)])

    def kept(queries: EmbeddingSet, middle: int, scores: Float[np.ndarray, "n q"]) -> BankQueries:
        arrays = queries.vectors.half().cpu().numpy(), queries.mask.cpu().numpy()
        return BankQueries(*arrays, middle, beta_of(scores))

    return QueryBank(model, kept(member.texts, middle, scores), kept(member.images, half, scores.T))


def bank_penalties(member: Member, bank: QueryBank) -> Penalties:
    """Return the penalties to subtract from the scores of the images and of the texts of some data."""

    def of(asked: Member, count: int, queries: BankQueries, *, swapped: bool) -> Float[np.ndarray, "n"]:
        halves = measure_attraction(_scores(asked, swapped=swapped), count, queries.middle, queries.beta)
        return penalties(halves, queries.middle / len(queries.mask), queries.beta)[0]

    texts, images = (
        EmbeddingSet(torch.from_numpy(each.vectors).float(), torch.from_numpy(each.mask))
        for each in (bank.texts, bank.images)
    )
    return (
        of(replace(member, texts=texts), len(member.images), bank.texts, swapped=False),
        of(replace(member, images=images), len(member.texts), bank.images, swapped=True),
    )


def _scores(member: Member, *, swapped: bool = False) -> Callable[[slice], Float[np.ndarray, "i q"]]:
    """Return a function that scores some images with all texts, or some texts with all images if ``swapped``."""

    @torch.inference_mode()
    def score(items: slice) -> Float[np.ndarray, "i q"]:
        whole = slice(None)
        scores = member.score(*((whole, items) if swapped else (items, whole))).float().cpu().numpy()
        return scores.T if swapped else scores

    return score


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
