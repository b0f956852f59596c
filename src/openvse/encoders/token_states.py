"""Text encoders in two parts: a text model makes raw states of the tokens, and what follows learns from these."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Collection, Iterable

from torch import nn

from openvse.encoders.base import TextEncoder
from openvse.types import Features, Inputs

_DIGITS = 12  # of a digest in a fingerprint, as in the names of other checkpoints


class TokenStatesEncoder(TextEncoder):
    """A text encoder whose raw token states a feature store can hold while its text model stays frozen.

    ``forward`` takes token ids, or stored states ``float [B, N, C]`` with their mask.
    """

    @property
    @abstractmethod
    def feature_dim(self) -> int:
        """C, the width of a raw state."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Which text model, weights, tokenizer and length make the states; a feature store remembers it."""

    @abstractmethod
    def token_states(self, inputs: Inputs) -> Features:
        """Return the raw states of token ids, ``local [B, N, C]``: what a feature store holds, padding left out."""

    @abstractmethod
    def why_not_stored(self) -> str | None:
        """Return why stored states cannot stand in for the text model in training, and what to do; None if they can."""


def digest_of(weights: nn.Module, *also: Iterable[object], names: Collection[str] | None = None) -> str:
    """Return a digest of the parameters of a module, under their names, and of some plain values.

    It is made of the weights in memory, so that a saved model has the digest of the checkpoint that it was made from.

    Args:
        weights: in single precision.
        also: values whose ``repr`` is the same on every machine.
        names: of the parameters that count; None for all.
    """
    digest = hashlib.sha256(repr([list(values) for values in also]).encode())
    counted = [each for each in weights.named_parameters() if names is None or each[0] in names]
    for name, parameter in counted:
        digest.update(f"{name}{list(parameter.shape)}".encode())
        digest.update(parameter.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()[:_DIGITS]
