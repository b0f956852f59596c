"""Towers as programs for batches and sets of any size: one module for each side, with tensors as input and output."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.aggregators import GPO, AdPool, RankedPooling
from openvse.aggregators.base import Aggregator
from openvse.encoders import BiGRU, ImageEncoder, TransformersText
from openvse.errors import ModelError
from openvse.model import Tower
from openvse.types import EmbeddingSet, Inputs

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class TabledGPO(RankedPooling):
    """A GPO whose coefficients are a table by set size, up to a largest size.

    Its generator reads packed sequences, whose sizes decide the shapes of a program; a table is read by one look-up.

    Args:
        pooling: the GPO.
        longest: the largest size.
    """

    table: Tensor

    def __init__(self, pooling: GPO, longest: int) -> None:
        nn.Module.__init__(self)
        with torch.no_grad():
            rows = [pooling.coefficients(torch.tensor([size]))[0] for size in range(1, longest + 1)]
        table = nn.utils.rnn.pad_sequence(
            [*rows, rows[-1].new_zeros(longest + 1, *rows[-1].shape[1:])], batch_first=True
        )
        # One column is never read: cutting a whole table would be a case of its own.
        self.register_buffer("table", table[:-1])

    def pool_ranked(self, ranked: Float[Tensor, "B L N"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        """Sum the sorted values of each dimension with the coefficients of the item's size."""
        theta = self.table[mask.sum(dim=1) - 1][:, : mask.shape[1]].to(ranked.dtype)
        if theta.dim() == 3:
            return (ranked * theta.transpose(1, 2)).sum(dim=2)
        return torch.einsum("bln,bn->bl", ranked, theta)


class Program(nn.Module):
    """A tower with tensors as input and output.

    Args:
        tower: the tower, in which every part can be exported.
    """

    def __init__(self, tower: Tower[Any]) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, values: Tensor, mask: Bool[Tensor, "B N"] | None = None) -> Float[Tensor, "B K D"]:
        """Embed a batch of pixels, or of tokens or features with their mask."""
        embedded: EmbeddingSet = self.tower(Inputs(values, mask))
        return embedded.vectors


def check_tower(tower: Tower[Any], side: str) -> None:
    """Raise ModelError where a program of the tower cannot give what the model gives."""
    aggregator: Aggregator = tower.aggregator
    if not aggregator.fixed_k:
        raise ModelError(
            f"the {side} side keeps all of its tokens, for a similarity that compares pairs: export a model whose "
            f"embeddings an index can hold, and keep this one for --rerank"
        )
    for part in tower.modules():
        if isinstance(part, AdPool) and part.count_padding:
            raise ModelError(
                f"the {side} side has adpool with count_padding, whose result depends on the padding of the batch: "
                f"no program gives the same embeddings; train or convert with count_padding: false"
            )
    if not aggregator.indexable:
        raise ModelError(
            f"the embeddings of the {side} side depend on more than the item, so that no program gives the same: "
            f"export a model with another aggregator"
        )


def program_of(tower: Tower[Any], longest: int) -> Program:
    """Return a copy of a tower on the CPU, in evaluation mode, in which every part can be exported.

    Args:
        tower: the tower.
        longest: the largest number of local features.
    """
    made = Program(copy.deepcopy(tower).cpu().eval())
    return with_tables(made, longest).requires_grad_(False)


def with_tables(module: ModuleT, longest: int) -> ModuleT:
    """Replace each GPO inside a module by a table of its coefficients, and return the module."""
    for name, child in module.named_children():
        if isinstance(child, GPO):
            setattr(module, name, TabledGPO(child, longest))
        else:
            with_tables(child, longest)
    return module


def longest_text(encoder: object, longest: int) -> int:
    """Return the largest number of tokens that a text encoder makes of a sentence.

    Args:
        encoder: the encoder.
        longest: the number for an encoder that has no limit of its own.
    """
    if isinstance(encoder, TransformersText):
        return int(encoder.max_length)
    if isinstance(encoder, BiGRU) and encoder.max_words is not None:
        return encoder.max_words + 2 * encoder.boundaries
    return longest


def reads_features(encoder: ImageEncoder) -> bool:
    """Return whether an image encoder has no network, so that it reads stored features."""
    return isinstance(encoder.backbone.net, nn.Identity)
