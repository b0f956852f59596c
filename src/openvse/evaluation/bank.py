"""Hub correction of an evaluation: the texts of a query bank find hub images, and its images find hub texts.

See ``openvse.scoring.hubs`` for the formula.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float

from openvse.corpus import Corpus
from openvse.errors import DataError
from openvse.evaluation.ensemble import Member
from openvse.evaluation.metrics import Metrics
from openvse.scoring.hubs import MOST_IMAGES, MOST_TEXTS, BankQueries, QueryBank, beta_of, measure_attraction, penalties
from openvse.types import EmbeddingSet

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
