"""Loaders for the texts of a batch, from token ids in memory or from stored token states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from openvse.batches.tokens import TokenTable
from openvse.encoders import TextEncoder
from openvse.errors import StoreError
from openvse.features import FeatureStore, text_id
from openvse.types import Inputs


@runtime_checkable
class TextLoader(Protocol):
    """Loads texts of a corpus by their positions.

    Attributes:
        lengths: the number of tokens of each text.
    """

    lengths: Int[Tensor, "T"]

    def __len__(self) -> int:
        """Return the number of texts."""
        ...

    def take(self, positions: Int[np.ndarray, "B"]) -> Inputs:
        """Return some texts, padded to their longest, and their mask."""
        ...


class StoredTexts:
    """Texts whose token states are in a store; a batch is gathered at once.

    Args:
        store: the store that ``extract_text_features`` made.
        texts: the texts of the corpus, in order.

    Raises:
        StoreError: the store lacks some of the texts.
    """

    def __init__(self, store: FeatureStore, texts: Sequence[str]) -> None:
        items = [text_id(text) for text in texts]
        missing = [text for text, item in zip(texts, items, strict=True) if item not in store]
        if missing:
            raise StoreError(
                f"feature store {store.path} lacks {len(missing)} of {len(texts)} texts (such as {missing[0]!r}): run "
                f"'openvse extract' of the text encoder again, it adds what is new, or set data.text_features=auto"
            )
        self._store = store
        self._rows = store.positions(items)
        self.lengths = torch.from_numpy(store.lengths[self._rows])

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, positions: Int[np.ndarray, "B"]) -> Inputs:
        """Read the states of some texts from disk, ``float32 [B, N, C]``."""
        return self._store.gather(self._rows[positions])


def text_loader(encoder: TextEncoder, texts: Sequence[str], features: FeatureStore | None) -> TextLoader:
    """Return the loader of texts, from stored states if there is a store, otherwise from token ids.

    Args:
        encoder: the encoder that makes the token ids.
        texts: the texts, in the order of their positions.
        features: the store of their states.

    Raises:
        StoreError: the store lacks some of the texts.
    """
    return TokenTable(encoder.tokenize(texts)) if features is None else StoredTexts(features, texts)
