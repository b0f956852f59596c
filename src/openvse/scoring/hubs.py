"""Query bank normalisation: a bank of queries finds the hubs of a gallery, the items that are near to everything.

The attraction of an item g is the soft mean of its scores with the queries of a bank B,

    a(g)  =  1 / beta * log( 1 / |B| * sum_b exp(beta s(b, g)) )

and ``s(q, g) - a(g)`` orders items like the inverted softmax ``exp(beta s(q, g)) / sum_b exp(beta s(b, g))`` (Smith et
al., ICLR 2017, and Bogolin et al., Cross Modal Retrieval with Querybank Normalisation, CVPR 2022). Here beta is 2 /
sigma for the standard deviation sigma of the scores of a query, so that their scale does not matter. Items are ordered
by

    s(q, g)  -  r a(g)

where r is the reliability of a(g), estimated like a test's from its two halves (Spearman and Brown, 1910, while Kelley,
1927, shrinks a measured value by it). With the correlation c of the items' attractions in the two halves of the bank, r
= 2 c / (1 + c). One standard error is subtracted, so a small bank or gallery changes nothing.

This module uses arrays, because a search without PyTorch needs them, too.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Bool, Float

from openvse.errors import DataError, message_of
from openvse.files import replacing

BANK = "query_bank.npz"
"""The file of a query bank in the folder of a model or an index."""

MOST_IMAGES, MOST_TEXTS = 1000, 4000
"""The most training images and captions that a model keeps as its bank."""

_SIDES, _PARTS = ("texts", "images"), ("vectors", "mask", "middle", "beta")  # of a model's bank
_ROWS = 256  # items that are compared with a bank at once
_FEWEST = 4  # the fewest items with a meaningful correlation

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BankQueries:
    """Queries of one kind, sentences or images, which show the hubs among items of the other.

    Attributes:
        vectors: their embeddings, ``float16 [B, K, D]``.
        mask: ``[B, K]``, True where the embedding exists.
        middle: the size of the first half. Queries of one image are in one half.
        beta: see above. NaN where it is not measured yet.
    """

    vectors: Float[np.ndarray, "B K D"]
    mask: Bool[np.ndarray, "B K"]
    middle: int
    beta: float


@dataclass(frozen=True)
class QueryBank:
    """The query bank of a model, given by its fingerprint: some of its training captions and images, as embeddings."""

    model: str
    texts: BankQueries
    images: BankQueries

    def write(self, folder: Path) -> None:
        """Write the bank into a model folder."""
        arrays = {f"{side}_{name}": getattr(getattr(self, side), name) for side in _SIDES for name in _PARTS}
        write_arrays(folder, {"model": np.array(self.model), **arrays})


def read_bank(folder: Path) -> QueryBank | None:
    """Return the query bank of a model folder, or None, with a warning if it cannot be read."""
    if not (folder / BANK).is_file():
        return None
    try:
        held = read_arrays(folder, ["model", *(f"{side}_{name}" for side in _SIDES for name in _PARTS)])
        parts = ([held[f"{side}_{name}"] for name in _PARTS] for side in _SIDES)
        queries = (BankQueries(vectors, mask, int(m), float(beta)) for vectors, mask, m, beta in parts)
        return QueryBank(str(held["model"]), *queries)
    except (ValueError, TypeError, DataError) as error:
        _logger.warning("%s is not used, as it is damaged: %s", folder / BANK, error)
        return None


def write_arrays(folder: Path, arrays: Mapping[str, Any]) -> None:
    """Write the bank of a model or an index."""
    with replacing(folder / BANK) as place, place.open("wb") as file:
        np.savez(file, **arrays)


def read_arrays(folder: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return some arrays of the bank of a model or an index. Raise DataError where it is damaged."""
    try:
        with np.load(folder / BANK, allow_pickle=False) as held:
            return {name: held[name] for name in names}
    except (OSError, ValueError, KeyError, EOFError, TypeError, BadZipFile, zlib.error, TokenError) as error:
        raise DataError(message_of(error)) from error


def beta_of(scores: Float[np.ndarray, "n q"]) -> float:
    """Return beta for the scores of items with queries."""
    return 2 / max(float(scores.std(axis=0, dtype=np.float64).mean()), 1e-12)


def measure_attraction(
    score: Callable[[slice], Float[np.ndarray, "i q"]], num_items: int, middle: int, beta: float
) -> Float[np.ndarray, "n 2"]:
    """Return the attraction of each item by each half of a bank. ``score`` returns the scores of some items with it.

    A score that is no number counts as an attraction of 0, because a search refuses it.
    """
    halves = np.zeros((num_items, 2), np.float32)
    for start in range(0, num_items, _ROWS):
        rows = slice(start, min(start + _ROWS, num_items))
        scores = np.asarray(score(rows), np.float64)
        halves[rows] = np.stack([_soft_mean(part, beta) for part in (scores[:, :middle], scores[:, middle:])], axis=1)
    return np.where(np.isfinite(halves), halves, np.float32(0))


def penalties(halves: Float[np.ndarray, "n 2"], share: float, beta: float) -> tuple[Float[np.ndarray, "n"], float]:
    """Return r a(g) of each item, and r. ``share`` is the first half's share of the queries."""
    r = reliability(halves)
    both = beta * halves.astype(np.float64) + np.log([share, 1 - share])
    return (r * np.logaddexp(*both.T) / beta).astype(np.float32), r


def reliability(halves: Float[np.ndarray, "n 2"]) -> float:
    """Return r, reduced by one standard error, between 0 and 1."""
    if len(halves) < _FEWEST or (halves == halves[0]).all(axis=0).any():
        return 0.0
    measured = np.asarray(np.corrcoef(halves.T.astype(np.float64)))[0, 1]
    c = float(np.tanh(np.arctanh(min(measured, 1 - 1e-12)) - 1 / np.sqrt(len(halves) - 3)))
    return 2 * c / (1 + c) if c > 0 else 0.0


def _soft_mean(scores: Float[np.ndarray, "i q"], beta: float) -> Float[np.ndarray, "i"]:
    with np.errstate(invalid="ignore"):
        highest = scores.max(axis=1)
        means = np.exp(beta * (scores - highest[:, np.newaxis])).mean(axis=1)
    return np.asarray(highest + np.log(means) / beta)
