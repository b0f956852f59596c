"""Run a frozen text model over texts and keep its token states in a store, once for each distinct text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from openvse.encoders import TokenStatesEncoder
from openvse.features.extract import ExtractionProgress, ExtractionReport, Pace
from openvse.features.layout import StoreDtype
from openvse.features.writer import FeatureStoreWriter
from openvse.functional import pad
from openvse.model import evaluating

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
        progress: a function that is called after each batch, and once if there is nothing to do.

    Returns:
        The number of distinct texts that were added, and the number that the store already had.

    Raises:
        StoreError: the store belongs to another text model, is being written by another process, or cannot hold the
            states that the text model made.
    """
    wanted = {text_id(text): text for text in texts}
    pace = Pace(ExtractionReport(unit="texts"), len(wanted), progress)
    report = pace.report
    encoder.to(device)
    with (
        FeatureStoreWriter(
            store, fingerprint=encoder.fingerprint, dim=encoder.feature_dim, dtype=dtype
        ) as writer,
        evaluating(encoder),
        torch.inference_mode(),
    ):
        new = {item: text for item, text in wanted.items() if item not in writer}
        report.skipped_existing = len(wanted) - len(new)
        for items, tokens in _by_length(encoder, new, batch_size):
            seen = encoder.token_states(pad(tokens).to(device))
            for item, local, real in zip(items, seen.local.cpu(), seen.mask.cpu(), strict=True):
                writer.add(item, local[real])
            report.done += len(items)
            pace.after_batch(writer)
    return pace.end()


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
