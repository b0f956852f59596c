"""Run a frozen text model over texts and keep its token states in a store, each different text once."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from openvse.encoders import TokenStatesEncoder
from openvse.features.extract import COMMIT_SECONDS, ExtractionProgress, ExtractionReport
from openvse.features.layout import StoreDtype
from openvse.features.writer import FeatureStoreWriter
from openvse.functional import pad
from openvse.model import evaluating

_TOKENIZED_AT_ONCE = 1 << 14


def text_id(text: str) -> str:
    """Return what a store calls a text: a digest of its exact characters, so that no text can be read there."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


def extract_text_features(
    encoder: TokenStatesEncoder,
    texts: Sequence[str],
    store: Path,
    *,
    batch_size: int = 128,
    device: torch.device | str = "cpu",
    dtype: StoreDtype = "float16",
    progress: Callable[[ExtractionProgress], None] | None = None,
) -> ExtractionReport:
    """Add the token states of texts to a feature store; equal texts are stored once, and what is there is skipped.

    Texts are read in the order of their lengths, so that little of a batch is padding. The store is committed every few
    seconds and when the function ends, in whatever way, so that an interrupted extraction continues where it was.

    Args:
        encoder: its text model makes the states; it is moved to ``device``.
        texts: sentences.
        store: folder of the store, created where it is missing.
        batch_size: texts encoded at once.
        device: where the text model runs.
        dtype: number format of the store.
        progress: called after each batch, and once when there is nothing to do.

    Returns:
        How many different texts were added, and how many were there.

    Raises:
        StoreError: the store belongs to another text model, is being written by another process, or the text model
            made states that it cannot hold.
    """
    started = committed = time.perf_counter()
    encoder.to(device)
    wanted = {text_id(text): text for text in texts}
    with (
        FeatureStoreWriter(
            store, fingerprint=encoder.fingerprint, dim=encoder.feature_dim, dtype=dtype
        ) as writer,
        evaluating(encoder),
        torch.inference_mode(),
    ):
        new = {item: text for item, text in wanted.items() if item not in writer}
        report = ExtractionReport(skipped_existing=len(wanted) - len(new), unit="texts")
        for items, tokens in _by_length(encoder, new, batch_size):
            seen = encoder.token_states(pad(tokens).to(device))
            for item, local, real in zip(items, seen.local.cpu(), seen.mask.cpu(), strict=True):
                writer.add(item, local[real])
            report.done += len(items)
            now = time.perf_counter()
            report.seconds = now - started
            if progress is not None:
                progress(report.progress(len(wanted)))
            if now - committed > COMMIT_SECONDS:
                writer.commit()
                committed = time.perf_counter()
    report.seconds = time.perf_counter() - started
    if progress is not None and not new:
        progress(report.progress(len(wanted)))
    return report


def _by_length(
    encoder: TokenStatesEncoder, texts: dict[str, str], batch_size: int
) -> Iterator[tuple[list[str], list[Tensor]]]:
    """Yield batches of items and token ids, the shortest texts first."""
    items, sentences = list(texts), list(texts.values())
    tokens: list[Tensor] = []
    for start in range(0, len(sentences), _TOKENIZED_AT_ONCE):
        tokens += encoder.tokenize(sentences[start : start + _TOKENIZED_AT_ONCE])
    order = np.argsort([len(ids) for ids in tokens], kind="stable")
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size].tolist()
        yield [items[place] for place in chosen], [tokens[place] for place in chosen]
