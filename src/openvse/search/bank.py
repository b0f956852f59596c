"""The query bank of an index: sentences that show which of its items are hubs, and what each item attracts of them.

    query_bank.npz        the beta, and what each item attracted when it was measured, by key and checksum
    bank-<digest>.npz     the sentences and their embeddings; it never changes

The first names the second and is replaced by rename, so both are complete at every moment. It follows the index as a
store does: ``openvse index`` measures what is new to it, and a search measures what it lacks. See ``model.hubs``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Float, Int
from numpy.lib.npyio import NpzFile

from openvse.errors import DataError, IndexFormatError
from openvse.files import locked, replacing
from openvse.index.index import Index, places_among
from openvse.model.hubs import BETA, Attraction, BankScores
from openvse.runtime.arrays import ArraySet
from openvse.search.exact import ItemComparison, comparison_of
from openvse.search.query import as_arrays

BANK = "query_bank.npz"
"""The file of an index that says what its items attract."""

_logger = logging.getLogger(__name__)

_SENTENCES = 1024  # embedded at once, and scored at once
_SCORES = 1 << 22  # of a block


@dataclass(frozen=True)
class IndexBank:
    """What the items of an index attract of its query bank, as it was measured last.

    Attributes:
        model: the fingerprint of the model that embedded the sentences.
        digest: of the model and the sentences.
        keys: of the items that were measured, rising.
        checksums: of their embeddings.
        amounts: what they attract.
        best: the score of the best item of each sentence.
        best_keys: the key of that item.
    """

    folder: Path
    model: str
    digest: str
    beta: float
    keys: Int[np.ndarray, "n"] = field(default_factory=lambda: np.empty(0, np.int64))
    checksums: Int[np.ndarray, "n"] = field(default_factory=lambda: np.empty(0, np.int64))
    amounts: Float[np.ndarray, "n"] = field(default_factory=lambda: np.empty(0, np.float32))
    best: Float[np.ndarray, "q"] = field(default_factory=lambda: np.empty(0, np.float32))
    best_keys: Int[np.ndarray, "q"] = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def read(cls, folder: Path) -> IndexBank | None:
        """Read the bank of an index; None where it has none.

        Raises:
            IndexFormatError: it is damaged.
        """
        path = folder / BANK
        if not path.exists():
            return None
        with _reading(path) as held:
            names = {name: held[name] for name in held.files}
            beta, model, digest = (names.pop(name).item() for name in ("beta", "model", "digest"))
            return cls(folder, model, digest, beta, **names)

    def write(self) -> None:
        """Make this the bank of the index, and remove the embeddings of another one."""
        with replacing(self.folder / BANK) as partial, partial.open("wb") as file:
            np.savez(
                file,
                model=self.model,
                digest=self.digest,
                beta=self.beta,
                keys=self.keys,
                checksums=self.checksums,
                amounts=self.amounts,
                best=self.best,
                best_keys=self.best_keys,
            )
        for path in self.folder.glob("bank-*.npz"):
            if path != self.place:
                with suppress(OSError):
                    path.unlink()

    @property
    def place(self) -> Path:
        """The file of the sentences and their embeddings."""
        return self.folder / f"bank-{self.digest}.npz"

    @property
    def sentences(self) -> list[str]:
        """The sentences."""
        with _reading(self.place) as held:
            return held["sentences"].tobytes().decode().split("\n")

    @cached_property
    def queries(self) -> ArraySet:
        """Their embeddings."""
        with _reading(self.place) as held:
            return ArraySet(held["vectors"], held["mask"])

    def followed(self, index: Index, compare: ItemComparison) -> IndexBank:
        """Return the same for the items of an index as they are now; only what is new is compared.

        Args:
            compare: how the model compares items with queries.
        """
        order = np.argsort(index.table.keys)
        keys, checksums = index.table.keys[order], index.table.checksums[order]
        places, known = places_among(self.keys, keys)
        known &= checksums == np.append(self.checksums, -1)[places]
        if known.all() and len(keys) == len(self.keys):
            return self
        scores = BankScores(len(keys), len(self.queries), [self.beta])
        if len(self.best):
            best, still = places_among(keys, self.best_keys)
            still &= np.append(known, False)[best]
            scores.best[still], scores.best_item[still] = self.best[still], best[still]
        lost = np.flatnonzero(scores.best_item < 0)
        for rows, look in ((np.flatnonzero(~known), False), (np.flatnonzero(known), True)):
            asked = lost if look else np.arange(len(self.queries))
            for some in _cut(rows, max(1, _SCORES // max(1, _SENTENCES * index.manifest.num_embeddings))):
                vectors = index.gather(order[some]).astype(np.float32)
                for queries in _cut(asked, _SENTENCES):
                    found = np.asarray(compare(vectors, self.queries[queries]), np.float32)
                    scores.see(some, queries, found, add=not look)
        amounts = np.where(known, np.append(self.amounts, 0)[places], scores.attraction().amounts)
        return replace(
            self,
            keys=keys,
            checksums=checksums,
            amounts=amounts.astype(np.float32),
            best=scores.best,
            best_keys=keys[scores.best_item],
        )

    def attraction(self, index: Index, compare: ItemComparison) -> Attraction | None:
        """Return what the items of an index attract, in its order; None, and a warning, for another model."""
        if self.model != index.manifest.model:
            _logger.warning(
                "the query bank of index %s was embedded by another model, and is not used: run 'openvse index' again",
                self.folder,
            )
            return None
        now, keys = self.followed(index, compare), index.table.keys
        return Attraction(now.amounts[np.searchsorted(now.keys, keys)], np.isin(keys, now.best_keys))


def _cut(rows: Int[np.ndarray, "n"], size: int) -> list[Int[np.ndarray, "_"]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


@contextmanager
def _reading(path: Path) -> Iterator[NpzFile]:
    """Open a file of arrays; raise IndexFormatError where it, or what is read of it, is damaged."""
    try:
        with np.load(path, allow_pickle=False) as held:
            yield held
    except (OSError, ValueError, KeyError, EOFError, TypeError, BadZipFile) as error:
        raise IndexFormatError(
            f"the query bank of index {path.parent} is damaged ({path.name}): give 'openvse index' --query-bank again"
        ) from error


def bring_bank(
    path: str | Path,
    model: Any,
    sentences: Sequence[str] | None = None,
    beta: float = BETA,
    *,
    batch_size: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> IndexBank | None:
    """Give an index a query bank, or bring the one that it has up to date; that costs what has changed since.

    Args:
        path: the folder of the index.
        model: the model of the index.
        sentences: those of the bank; None keeps what the index has, and an empty sequence takes its bank away.
        beta: see ``model.hubs``; where no sentences are given, that of the index is kept.
        batch_size: the number of sentences that are embedded at once.
        progress: called with how many sentences are embedded, and how many there are.

    Returns:
        The bank; None where the index has none.

    Raises:
        DataError: the index holds sentences, or beta is not above 0.
        IndexFormatError: there is no index, another model made it, another process writes it, or its bank is damaged.
    """
    folder = Path(path)
    if not sentences and not (folder / BANK).exists():
        return None
    with locked(folder, "index", IndexFormatError):
        index, before = Index.open(folder, model.fingerprint), None
        with suppress(IndexFormatError) if sentences is not None else nullcontext():
            before = IndexBank.read(folder)
        if sentences is None and before is not None:
            sentences, beta = before.sentences, before.beta
        if index.manifest.holds == "sentences" and sentences:
            raise DataError(
                "an index of sentences is asked by images: leave out --query-bank, which is of sentences"
            )
        if not sentences:
            for file in (folder / BANK, *folder.glob("bank-*.npz")):
                file.unlink(missing_ok=True)
            return None
        if not 0 < beta < math.inf:
            raise DataError(f"beta is {beta:g}: give a number above 0, such as {BETA:g}")
        digest = blake2b("\n".join([model.fingerprint, *sentences]).encode(), digest_size=8).hexdigest()
        held = before
        if before is None or (before.digest, before.beta) != (digest, beta):
            before = IndexBank(folder, model.fingerprint, digest, beta)
        if not before.place.exists():
            _embed(before.place, model, sentences, batch_size, progress)
        bank = before.followed(index, comparison_of(model, index.manifest.holds))
        if bank is not before or before is not held:
            bank.write()
        return bank


def _embed(
    path: Path,
    model: Any,
    sentences: Sequence[str],
    batch_size: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Embed sentences, and write them with their embeddings."""
    parts = []
    for start in range(0, len(sentences), _SENTENCES):
        parts.append(as_arrays(model.encode_text(list(sentences[start : start + _SENTENCES]), batch_size)))
        if progress is not None:
            progress(min(start + _SENTENCES, len(sentences)), len(sentences))
    made, text = ArraySet.concatenate(parts), np.frombuffer("\n".join(sentences).encode(), np.uint8)
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, sentences=text, vectors=made.vectors, mask=made.mask)
