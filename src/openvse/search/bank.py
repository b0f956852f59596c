"""The query bank of an index: queries that show which of its items are hubs, and each item's attraction of them.

``query_bank.npz`` holds arrays by name: the queries (see ``scoring.hubs.BankQueries``), the fingerprint of the
``model`` that embedded them, and their ``source``: ``model`` for the model's own bank, a hash of sentences that a user
has named, or ``none``. Then come the ``keys`` of the items, which rise, their ``checksums``, and their attraction of
each half of the bank (``halves``). It follows the index as a store does: ``openvse index`` measures new items, and a
search the missing ones. beta belongs to the bank, so a growing index equals one made at once.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from jaxtyping import Float

from openvse.errors import DataError, IndexFormatError
from openvse.indexing.index import Index, places_among
from openvse.runtime.arrays import ArraySet
from openvse.scoring.hubs import (
    BANK,
    BankQueries,
    QueryBank,
    beta_of,
    measure_attraction,
    penalties,
    read_arrays,
    write_arrays,
)
from openvse.search.exact import ItemComparison, as_arrays, comparison_of

if TYPE_CHECKING:  # a search does not write
    from openvse.indexing.writer import FoundIndex

_logger = logging.getLogger(__name__)

_Held: TypeAlias = dict[str, Any]
_OF_ITEMS = {"keys": np.empty(0, np.int64), "checksums": np.empty(0, np.int64), "halves": np.empty((0, 2))}
_NAMES = ("model", "source", "vectors", "mask", "middle", "beta", *_OF_ITEMS)
_SENTENCES = 1024  # embedded at once
_MEASURED = 256  # items from which beta is measured for a bank that does not have it
_NONE, _MODEL = "none", "model"


def read_penalties(index: Index, compare: ItemComparison) -> Float[np.ndarray, "n"] | None:
    """Return the penalties of the items of an index, in its order, to take hubs out.

    It is None if there is no bank, the bank shows nothing, or, with a warning, another model embedded it.
    IndexFormatError: it is damaged.
    """
    if not (index.path / BANK).exists():
        return None
    held = _read(index.path, [name for name in _NAMES if name != "vectors"])
    if str(held["source"]) == _NONE:
        return None
    if str(held["model"]) != index.manifest.model:
        _logger.warning(
            "the query bank of index %s was embedded by another model, and is not used: run 'openvse index' again",
            index.path,
        )
        return None
    held = _followed(held, index, compare)
    amounts, r = _penalties(held)
    return amounts[np.searchsorted(held["keys"], index.table.keys)] if r > 0 else None


def update_bank(
    found: FoundIndex,
    model: Any,
    sentences: Sequence[str] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Mapping[str, int | float | str] | None:
    """Give an index a query bank, or update its own, at the cost of the changes since.

    Without ``sentences``, an index keeps its bank, and one without takes the model's. An empty list removes the bank
    for good. Return the number of ``queries``, their ``source`` and their ``reliability``, or None without a bank. The
    caller holds the lock of the index, which has this model.
    """
    folder, database = found.folder, found.database
    own: QueryBank | None = getattr(model, "query_bank", None)
    if sentences is None and own is None and not (folder / BANK).exists():
        return None
    before = _Held()
    # A damaged bank is made anew where it can be.
    with suppress(IndexFormatError) if sentences is not None or own is not None else nullcontext():
        before = _read(folder) if (folder / BANK).exists() else before
    if (held := _wanted(before, found, model, sentences, own, progress)) is None:
        (folder / BANK).unlink(missing_ok=True)
        return None
    stamps: Any = database.read("SELECT key, checksum FROM items ORDER BY key")
    is_none = str(held["source"]) == _NONE
    if not is_none and not np.array_equal(np.stack([held["keys"], held["checksums"]], axis=1), stamps):
        held = _followed(held, Index.of(folder, found.manifest, database), comparison_of(model, found.manifest.holds))
    if held is not before:
        write_arrays(folder, held)
    if is_none:
        return None
    source = _MODEL if str(held["source"]) == _MODEL else "given"
    return {"queries": len(held["mask"]), "source": source, "reliability": _penalties(held)[1]}


def _read(folder: Path, names: Sequence[str] = _NAMES) -> _Held:
    """Read some arrays of a bank. Raise IndexFormatError if it is damaged."""
    try:
        return read_arrays(folder, names)
    except DataError as error:
        raise IndexFormatError(
            f"the query bank of index {folder} is damaged ({BANK}): give 'openvse index' --query-bank again"
        ) from error


def _wanted(
    before: _Held,
    found: FoundIndex,
    model: Any,
    sentences: Sequence[str] | None,
    own: QueryBank | None,
    progress: Callable[[int, int], None] | None,
) -> _Held | None:
    """Return the new bank of an index, compared with nothing yet unless it is the one before."""
    is_same = before.get("model") == model.fingerprint
    if sentences is None:
        if before and (is_same or str(before["source"]) == _NONE):
            return before
        if before and str(before["source"]) != _MODEL:
            _logger.warning("the query bank of index %s was embedded by another model and is gone", found.folder)
        if own is None:
            return None
        return _new(model, _MODEL, own.images if found.manifest.holds == "sentences" else own.texts)
    if not sentences:
        return _new(model, _NONE, BankQueries(np.empty((0, 1, 1)), np.empty((0, 1), bool), 0, math.nan))
    if found.manifest.holds == "sentences":
        raise DataError("an index of sentences is asked by images: leave out --query-bank, which is of sentences")
    source = hashlib.sha256("\n".join(sentences).encode(errors="surrogatepass")).hexdigest()
    if is_same and str(before["source"]) == source:
        return before
    parts = []
    for start in range(0, len(sentences), _SENTENCES):
        parts.append(as_arrays(model.encode_text(list(sentences[start : start + _SENTENCES]))))
        if progress is not None:
            progress(min(start + _SENTENCES, len(sentences)), len(sentences))
    made, beta = ArraySet.concatenate(parts), math.nan if own is None else own.texts.beta
    return _new(model, source, BankQueries(made.vectors, made.mask, len(sentences) // 2, beta))


def _new(model: Any, source: str, queries: BankQueries) -> _Held:
    of_bank = vars(queries) | {"vectors": queries.vectors.astype(np.float16)}
    return {"model": np.array(model.fingerprint), "source": np.array(source), **of_bank, **_OF_ITEMS}


def _penalties(held: _Held) -> tuple[Float[np.ndarray, "n"], float]:
    """Return the penalty of each item, in the order of the keys, and the reliability."""
    return penalties(held["halves"], int(held["middle"]) / len(held["mask"]), float(held["beta"]))


def _followed(held: _Held, index: Index, compare: ItemComparison) -> _Held:
    """Return a bank with the attraction of the present items of an index. Only new ones are compared."""
    order = np.argsort(index.table.keys)
    keys, checksums = index.table.keys[order], index.table.checksums[order]
    if np.array_equal(held["keys"], keys) and np.array_equal(held["checksums"], checksums):
        return held
    held = held if "vectors" in held else _read(index.path)
    queries, beta = ArraySet(held["vectors"].astype(np.float32), held["mask"]), float(held["beta"])
    places, known = places_among(held["keys"], keys)
    known &= checksums == np.append(held["checksums"], -1)[places]
    new = order[~known]

    def score(positions: np.ndarray) -> np.ndarray:
        return np.asarray(compare(index.gather(positions).astype(np.float32), queries), np.float32)

    if math.isnan(beta) and len(order):
        beta = beta_of(score(order[:_MEASURED]))
    halves = np.append(held["halves"], [[0, 0]], axis=0)[places].astype(np.float32)
    halves[~known] = measure_attraction(lambda rows: score(new[rows]), len(new), int(held["middle"]), beta)
    return {**held, "beta": beta, "keys": keys, "checksums": checksums, "halves": halves}
