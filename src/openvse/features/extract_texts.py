"""Run a frozen text model over texts and keep its token states in a store, once for each distinct text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from openvse.encoders import TokenStatesEncoder
from openvse.features.extract import ExtractionProgress, ExtractionReport, Pace
from openvse.features.extract_shards import (
    ITEMS_IN_SHARD,
    Extract,
    Failures,
    extract_in_shards,
    forget_shards,
)
from openvse.features.layout import StoreDtype
from openvse.features.writer import FeatureStoreWriter
from openvse.functional import pad
from openvse.model import evaluating
from openvse.workers import Workers

_TOKENIZED_AT_ONCE = 1 << 14


def text_id(text: str) -> str:
    """Return the identifier of a text in a store: a digest of its exact characters, which does not reveal the text."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


def extract_text_features(
    encoder: TokenStatesEncoder,
    texts: Sequence[str],
    store: Path,
    *,
    batch_size: int = 128,
    device: torch.device | str = "cpu",
    dtype: StoreDtype = "float16",
    workers: Workers | None = None,
    progress: Callable[[ExtractionProgress], None] | None = None,
) -> ExtractionReport:
    """Add the token states of texts to a feature store; equal texts are stored once, and those that it has are skipped.

    Texts are read in the order of their lengths, so that little of a batch is padding. The store is committed every few
    seconds and whenever the function ends, so that an interrupted extraction continues where it was.

    Args:
        encoder: the encoder whose text model makes the states; it is moved to ``device``.
        texts: the sentences.
        store: the folder of the store, which is created if it is missing.
        batch_size: the number of texts encoded at once.
        device: the device on which the text model runs.
        dtype: the number format of the store.
        workers: processes that extract shards of the texts; the store is the same, bit for bit, as with one process of
            as many threads as each of them has.
        progress: a function that is called after each batch, or each shard of a worker, and once if there is nothing
            to do.

    Returns:
        The number of distinct texts that were added, and the number that the store already had.

    Raises:
        OpenVSEError: there are workers, and Ray is not installed, or no cluster answers.
        StoreError: the store belongs to another text model, is being written by another process, or cannot hold the
            states that the text model made.
    """
    wanted = {text_id(text): text for text in texts}
    pace = Pace(ExtractionReport(unit="texts"), len(wanted), progress)
    report, here = pace.report, _TextExtraction(encoder, batch_size, device, dtype)
    with here.open(store) as writer:
        new = [(item, text) for item, text in wanted.items() if item not in writer]
        report.skipped_existing = len(wanted) - len(new)
        parts = here(new, writer) if workers is None else here.share(new, writer, workers)
        for added in parts:
            report.done += added
            pace.after_batch(writer)
        if workers is None:
            forget_shards(store)
    return pace.end()


@dataclass(frozen=True)
class _TextExtraction:
    """How token states are extracted: the arguments of ``extract_text_features``."""

    encoder: TokenStatesEncoder
    batch_size: int
    device: torch.device | str
    dtype: StoreDtype

    def open(self, store: Path) -> FeatureStoreWriter:
        """Create or continue a store."""
        return FeatureStoreWriter(
            store, fingerprint=self.encoder.fingerprint, dim=self.encoder.feature_dim, dtype=self.dtype
        )

    def __call__(self, texts: Sequence[tuple[str, str]], writer: FeatureStoreWriter) -> Iterator[int]:
        """Add texts batch by batch, the shortest first, and yield how many each has."""
        encoder = self.encoder.to(self.device)
        tokens, order = self._by_length(texts)
        with evaluating(encoder):
            for start in range(0, len(order), self.batch_size):
                chosen = order[start : start + self.batch_size]
                self._add([texts[place][0] for place in chosen], [tokens[place] for place in chosen], writer)
                yield len(chosen)

    @torch.inference_mode()
    def _add(self, items: Sequence[str], tokens: Sequence[Tensor], writer: FeatureStoreWriter) -> None:
        seen = self.encoder.token_states(pad(tokens).to(self.device))
        for item, local, real in zip(items, seen.local.cpu(), seen.mask.cpu(), strict=True):
            writer.add(item, local[real])

    def share(
        self, texts: Sequence[tuple[str, str]], writer: FeatureStoreWriter, workers: Workers
    ) -> Iterator[int]:
        """Let workers add texts, and yield the same shard by shard."""
        _, order = self._by_length(texts)
        parts = extract_in_shards(
            partial(_shard_extractor, replace(self, device=workers.device)),
            [texts[place] for place in order],
            writer,
            settings=f"{self.encoder.fingerprint} {self.batch_size} {self.dtype} {workers.threads}",
            shard_size=max(1, ITEMS_IN_SHARD // self.batch_size) * self.batch_size,
            workers=workers,
        )
        return (added for added, _ in parts)

    def _by_length(self, texts: Sequence[tuple[str, str]]) -> tuple[list[Tensor], list[int]]:
        """Return the token ids of texts, and the places of the texts, the shortest first."""
        sentences = [text for _, text in texts]
        tokens: list[Tensor] = []
        for start in range(0, len(sentences), _TOKENIZED_AT_ONCE):
            tokens += self.encoder.tokenize(sentences[start : start + _TOKENIZED_AT_ONCE])
        return tokens, np.argsort([len(ids) for ids in tokens], kind="stable").tolist()


def _shard_extractor(how: _TextExtraction) -> Extract[str]:
    return partial(_extract_shard, how)


def _extract_shard(how: _TextExtraction, texts: Sequence[tuple[str, str]], store: Path) -> Failures[str]:
    with how.open(store) as writer:
        for _ in how(texts, writer):
            pass
    return []
