"""Text encoders in two parts: a text model makes raw states of the tokens, and later layers learn from them."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Collection, Iterable

from torch import nn

from openvse.encoders.base import TextEncoder
from openvse.types import Features, Inputs

_DIGITS = 12  # number of digits of a digest in a fingerprint, as for other checkpoints


class TokenStatesEncoder(TextEncoder):
    """A text encoder whose raw token states can be stored if its text model is frozen.

    ``forward`` takes token ids, or stored states ``float [B, N, C]`` with their mask.
    """

    @property
    @abstractmethod
    def feature_dim(self) -> int:
        """C, the width of a raw state."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """The text model, weights, tokenizer and length that make the states; a feature store remembers this value."""

    @abstractmethod
    def token_states(self, inputs: Inputs) -> Features:
        """Return the raw states of token ids, ``local [B, N, C]``; a feature store holds them without the padding."""

    @abstractmethod
    def why_not_stored(self) -> str | None:
        """Return why stored states cannot replace the text model in training, and what to do; None if they can."""


def digest_of(weights: nn.Module, *also: Iterable[object], names: Collection[str] | None = None) -> str:
    """Return a digest of the named parameters of a module and of some plain values.

    The digest depends on the weights in memory, so a saved model has the digest of the checkpoint that it started from.

    Args:
        weights: the module, in single precision.
        also: the plain values; their ``repr`` must be the same on every machine.
        names: the names of the parameters that count; None means all.
    """
    digest = hashlib.sha256(repr([list(values) for values in also]).encode())
    counted = [each for each in weights.named_parameters() if names is None or each[0] in names]
    for name, parameter in counted:
        digest.update(f"{name}{list(parameter.shape)}".encode())
        digest.update(parameter.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()[:_DIGITS]
