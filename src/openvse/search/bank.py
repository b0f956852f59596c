"""The query bank of an index: sentences that show which of its items are hubs, and what each item attracts of them.

``query_bank.npz`` holds arrays by name: the sentences with their embeddings (``vectors``, ``mask``), the fingerprint of
the ``model`` that made these, and ``beta``; what items attract (``amounts``) by their ``keys``, which rise, and
``checksums``; and the score and the key of the best item of each sentence (``best``, ``best_keys``). It follows the
index as a store does: ``openvse index`` measures what is new to it, and a search what it lacks. See ``scoring.hubs``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from tokenize import TokenError
from typing import Any, TypeAlias
from zipfile import BadZipFile

import numpy as np

from openvse.errors import DataError, IndexFormatError
from openvse.files import locked, replacing
from openvse.indexing.index import Index, places_among
from openvse.runtime.arrays import ArraySet
from openvse.scoring.hubs import BETA, Attraction, measure_attraction
from openvse.search.exact import ItemComparison, comparison_of
from openvse.search.query import as_arrays

BANK = "query_bank.npz"
"""The file of an index that holds its query bank."""

_logger = logging.getLogger(__name__)

_Held: TypeAlias = dict[str, Any]
_OF_ITEMS = {"keys": np.int64, "checksums": np.int64, "amounts": np.float32}
_NAMES = ("model", "sentences", "vectors", "mask", "beta", *_OF_ITEMS, "best", "best_keys")
_SENTENCES = 1024  # embedded at once


def read_attraction(index: Index, compare: ItemComparison) -> Attraction | None:
    """Return what the items of an index attract of its query bank, in its order.

    It is None where there is no bank, or, with a warning, one of another model; IndexFormatError: it is damaged.
    """
    if not (index.path / BANK).exists():
        return None
    held, keys = _read(index.path, ("model", *_OF_ITEMS, "best_keys")), index.table.keys
    if str(held["model"]) != index.manifest.model:
        _logger.warning(
            "the query bank of index %s was embedded by another model, and is not used: run 'openvse index' again",
            index.path,
        )
        return None
    held = _followed(held, index, compare)
    return Attraction(held["amounts"][np.searchsorted(held["keys"], keys)], np.isin(keys, held["best_keys"]))


def update_bank(
    path: str | Path,
    model: Any,
    sentences: Sequence[str] | None = None,
    beta: float | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Mapping[str, int | float] | None:
    """Give an index a query bank, or update the one that it has; that costs what has changed since.

    No ``sentences`` take the bank away, and None keeps it. Return their number and ``beta``; None if there is no bank.
    """
    folder = Path(path)
    if not sentences and not (folder / BANK).exists():
        return None
    with locked(folder, "index", IndexFormatError):
        index, before = Index.open(folder, model.fingerprint), _Held()
        with suppress(IndexFormatError) if sentences is not None else nullcontext():
            before = _read(folder)
        if sentences is None:
            sentences = before["sentences"].tobytes().decode().split("\n")
            beta = float(before["beta"]) if beta is None else beta
        beta = BETA if beta is None else beta
        if not sentences:
            (folder / BANK).unlink()
            return None
        if index.manifest.holds == "sentences":
            raise DataError(
                "an index of sentences is asked by images: leave out --query-bank, which is of sentences"
            )
        if not 0 < beta < math.inf:
            raise DataError(f"beta is {beta:g}: give a number above 0, such as {BETA:g}")
        held = _bank_of(before, model, sentences, beta, progress)
        held = _followed(held, index, comparison_of(model, index.manifest.holds))
        if held is not before:
            with replacing(folder / BANK) as place, place.open("wb") as file:
                np.savez(file, **held)
        return {"sentences": len(sentences), "beta": beta}


def _read(folder: Path, names: Sequence[str] = _NAMES) -> _Held:
    """Read some arrays of a bank; raise IndexFormatError where it is damaged."""
    try:
        with np.load(folder / BANK, allow_pickle=False) as held:
            return {name: held[name] for name in names}
    except (OSError, ValueError, KeyError, EOFError, TypeError, BadZipFile, TokenError) as error:
        raise IndexFormatError(
            f"the query bank of index {folder} is damaged ({BANK}): give 'openvse index' --query-bank again"
        ) from error


def _bank_of(
    before: _Held,
    model: Any,
    sentences: Sequence[str],
    beta: float,
    progress: Callable[[int, int], None] | None,
) -> _Held:
    """Return a bank before anything is measured; or the one before, as far as it is of the same model and sentences."""
    text = np.frombuffer("\n".join(sentences).encode(), np.uint8)
    if before.get("model") != model.fingerprint or not np.array_equal(before["sentences"], text):
        parts = []
        for start in range(0, len(sentences), _SENTENCES):
            parts.append(as_arrays(model.encode_text(list(sentences[start : start + _SENTENCES]))))
            if progress is not None:
                progress(min(start + _SENTENCES, len(sentences)), len(sentences))
        made, name = ArraySet.concatenate(parts), np.array(model.fingerprint)
        before = {"model": name, "sentences": text, "vectors": made.vectors, "mask": made.mask}
    if before.get("beta") == beta:
        return before
    best = np.full(len(sentences), -np.inf, np.float32), np.full(len(sentences), -1)
    nothing = {name: np.empty(0, dtype) for name, dtype in _OF_ITEMS.items()}
    return {**before, **nothing, "beta": np.array(beta), "best": best[0], "best_keys": best[1]}


def _followed(held: _Held, index: Index, compare: ItemComparison) -> _Held:
    """Return a bank with what it says of the items of an index as they are now; only what is new is compared."""
    order = np.argsort(index.table.keys)
    keys, checksums = index.table.keys[order], index.table.checksums[order]
    if np.array_equal(held["keys"], keys) and np.array_equal(held["checksums"], checksums):
        return held
    held = held if "vectors" in held else _read(index.path)
    queries = ArraySet(held["vectors"], held["mask"])
    places, known = places_among(held["keys"], keys)
    known &= checksums == np.append(held["checksums"], -1)[places]
    best_places, still = places_among(keys, held["best_keys"])
    still &= np.append(known, False)[best_places]
    old, new, lost = (np.flatnonzero(each) for each in (known, ~known, ~still))

    def measured(rows: np.ndarray, asked: np.ndarray, betas: Sequence[float]) -> tuple[np.ndarray, ...]:
        def score(items: slice, some: slice) -> np.ndarray:
            vectors = index.gather(order[rows[items]]).astype(np.float32)
            return np.asarray(compare(vectors, queries[asked[some]]), np.float32)

        amounts, best, best_rows = measure_attraction(score, len(rows), len(asked), betas)
        return amounts, best, np.append(keys[rows], -1)[best_rows]

    amounts = np.append(held["amounts"], np.float32(0))[places]
    best, best_keys = held["best"].copy(), held["best_keys"].copy()
    _, best[lost], best_keys[lost] = measured(old, lost, ())
    (amounts[new],), new_best, new_keys = measured(new, np.arange(len(queries)), [float(held["beta"])])
    return {
        **held,
        "keys": keys,
        "checksums": checksums,
        "amounts": amounts,
        "best": np.maximum(best, new_best),
        "best_keys": np.where(new_best > best, new_keys, best_keys),
    }
