"""The bases of encoders, and projections of raw local features to the joint width, by name in a recipe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.errors import RecipeError
from openvse.functional import compact, masked_mean, places_of
from openvse.kernels import shapes_are_fixed
from openvse.layers.attention import checked_dropout, xavier_linear
from openvse.layers.recurrence import final_states, packed_gru, states_at_end
from openvse.registry import Configured, Registry
from openvse.tokenization.vocabulary import Coverage, UnknownWord
from openvse.types import Features, Inputs, moved, on_cpu


class Encoder(Configured, nn.Module, ABC):
    """Turns collated Inputs into Features.

    Attributes:
        local_dim: L, the width of the local features.
        gives_pooled: whether the encoder also yields a global vector, for aggregators that need one.
    """

    local_dim: int
    gives_pooled: bool = False

    @abstractmethod
    def forward(self, inputs: Inputs) -> Features:
        """Encode a batch. Real positions of the result are True in its mask."""

    def save_assets(self, folder: Path) -> None:
        """Write the files needed besides the weights (a vocabulary, a tokenizer, a backbone's config) to a folder."""


class TextEncoder(Encoder):
    """An encoder of sentences.

    The build passes four values to each encoder that names them. ``embed_dim`` is D. ``captions`` are all training
    captions, for a new vocabulary. ``assets`` is a folder written by ``save_assets``, whose vocabulary or tokenizer is
    read instead. ``grow`` is whether words of the captions are appended to this vocabulary.

    Attributes:
        most_tokens: the largest number of tokens of a sentence, or None if an export must be given one.
    """

    most_tokens: int | None = None

    @abstractmethod
    def tokenize(self, captions: Sequence[str]) -> list[Tensor]:
        """Return the token ids of each caption, ``int64 [N]`` with N >= 1, on the CPU."""

    @abstractmethod
    def pieces(self, caption: str) -> list[str]:
        """Return a readable word piece for each token of a caption, in the order of ``tokenize``."""

    def unknown_words(self, caption: str) -> list[UnknownWord]:
        """Return the words of a caption that the encoder has not learned, each once, or none if it cannot tell."""
        return []

    def why_not_stored(self) -> str | None:
        """Return why stored token states cannot replace the text model in training, or None if they can."""
        return "this text encoder has no text model whose states can be stored: drop the store of texts"

    def coverage(self, captions: Sequence[str]) -> Coverage | None:
        """Count how many words of many captions the encoder knows. None if it cannot tell."""
        return None


class Projection(Configured, nn.Module, ABC):
    """Maps each local feature from the raw width C (``input_dim``) to L, the width that the aggregator reads.

    The build passes ``input_dim`` and ``embed_dim``, D. ``output_dim`` is L.
    """

    def __init__(self, *, input_dim: int, output_dim: int) -> None:
        super().__init__()
        self.input_dim = input_dim
        self.output_dim = output_dim

    @abstractmethod
    def forward(self, local: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N L"]:
        """Project a batch. The values at masked positions have no meaning."""


class LinearProjection(Projection):
    """One linear layer, Xavier-uniform, bias 0, as VSE++ and VSE-infinity use for grids and for BERT.

    Args:
        bias: whether to add a bias. CLIP's projections have none.
        dropout: the probability that a feature is dropped in training, in all positions of an item alike. This equals
            dropout of the projected mean, which HGR's released code does for VSE++ (0.2).

    Raises:
        RecipeError: dropout is not in [0, 1).
    """

    def __init__(self, *, input_dim: int, embed_dim: int, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__(input_dim=input_dim, output_dim=embed_dim)
        self.linear = xavier_linear(input_dim, embed_dim, bias=bias)
        self.dropout = nn.Dropout1d(checked_dropout(dropout))

    def forward(self, local: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N L"]:
        projected: Tensor = self.linear(local)
        dropped = self.training and self.dropout.p > 0
        return self.dropout(projected.mT).mT if dropped else projected


class NormLinear(Projection):
    """``W LN(x)``: layer normalisation, then one linear layer, as CLIP projects its images (its released code).

    CLIP only projects its class token. Here every local feature is projected.

    Args:
        bias: whether to add a bias to the linear layer.
        eps: the number added to the variance that the normalisation divides by.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, bias: bool = False, eps: float = 1e-5) -> None:
        super().__init__(input_dim=input_dim, output_dim=embed_dim)
        self.norm = nn.LayerNorm(input_dim, eps=eps)
        self.linear = xavier_linear(input_dim, embed_dim, bias=bias)

    def forward(self, local: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N L"]:
        return cast(Tensor, self.linear(self.norm(local)))


class ResidualMLP(Projection):
    """``fc(x) + MLP(x)``, the region projection of VSE-infinity (section 4.1 and its released code).

    The MLP goes from C to D/2 to D, with BatchNorm and ReLU between. Deviation: the released BatchNorm also counts
    padding rows, so that in training the embedding of an item depends on the rest of its batch. Here only real rows
    count, unless ``count_padding`` asks for the released behaviour.

    Args:
        count_padding: whether padding rows enter the BatchNorm statistics, as in the released code.
        in_series: whether the MLP reads fc(x) in place of x, as in DivE's released code.
        dropout: the probability in [0, 1) that a feature of the result is dropped in training (0.1 in DivE).
    """

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        count_padding: bool = False,
        in_series: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(input_dim=input_dim, output_dim=embed_dim)
        self.count_padding, self.in_series = count_padding, in_series
        self.dropout = nn.Dropout(checked_dropout(dropout))
        hidden_dim = max(1, embed_dim // 2)
        self.linear = xavier_linear(input_dim, embed_dim)
        self.mlp = nn.Sequential(
            nn.Linear(embed_dim if in_series else input_dim, hidden_dim),
            nn.BatchNorm1d(hidden_dim),
            nn.ReLU(),
            nn.Linear(hidden_dim, embed_dim),
        )

    def forward(self, local: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N L"]:
        """Project the real rows. The others become 0 (with ``count_padding``, all rows are projected)."""
        counted = moved(torch.ones_like(on_cpu(mask)), mask.device) if self.count_padding else mask
        if shapes_are_fixed():  # the mask must not decide a shape
            straight: Tensor = self.linear(local)
            rows = (straight if self.in_series else local).flatten(0, 1)
            bent = self._bent_where(rows, counted.flatten()) if self.training else self.mlp(rows)
            both: Tensor = self.dropout(straight + bent.view(straight.shape))
            return both.masked_fill(~counted.unsqueeze(-1), 0.0)
        places = places_of(counted)
        real = local[places]
        straight = self.linear(real)
        projected = self.dropout(straight + self.mlp(straight if self.in_series else real))
        empty: Tensor = projected.new_zeros(*mask.shape, self.output_dim)
        return empty.index_put(places, projected)

    def _bent_where(self, rows: Float[Tensor, "R C"], real: Bool[Tensor, "R"]) -> Float[Tensor, "R D"]:
        """Return what the MLP makes of rows in training, whose BatchNorm counts and learns from the real ones."""
        first, norm, *others = cast(Any, self.mlp)
        hidden, weights = first(rows), real.float().unsqueeze(1)
        count = weights.sum()
        mean = (weights * hidden).sum(dim=0) / count
        centred = hidden - mean
        variance = (weights * centred.square()).sum(dim=0) / count
        with torch.no_grad():
            norm.num_batches_tracked.add_(1)
            norm.running_mean.lerp_(mean, norm.momentum)
            norm.running_var.lerp_(variance * count / (count - 1), norm.momentum)
        scaled = centred * (variance + norm.eps).rsqrt() * norm.weight + norm.bias
        return cast(Tensor, nn.Sequential(*others)(scaled.to(hidden.dtype)))


class BiGRUProjection(Projection):
    """A bidirectional GRU over the features in their order, with averaged directions, for frozen token states.

    It is the BiGRU of VSE-infinity (section 4.1), over features instead of word embeddings. It skips hidden features.
    """

    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__(input_dim=input_dim, output_dim=embed_dim)
        self.gru = nn.GRU(input_dim, embed_dim, batch_first=True, bidirectional=True)

    def forward(self, local: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N L"]:
        """Read the real features. The others become 0."""
        values, real = compact(local, mask)
        states = packed_gru(self.gru, values, real).mean(dim=0)
        if shapes_are_fixed():
            place = (mask.cumsum(dim=1) - 1).clamp(min=0).unsqueeze(-1).expand_as(states)
            return states.gather(1, place).masked_fill(~mask.unsqueeze(-1), 0.0)
        return states.new_zeros(*mask.shape, self.output_dim).index_put(places_of(mask), states[places_of(real)])


class NoProjection(Projection):
    """Passes the raw features on, L = C, for aggregators that have their own projection."""

    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__(input_dim=input_dim, output_dim=input_dim)

    def forward(self, local: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N L"]:
        return local


PROJECTIONS: Registry[Projection] = Registry(
    "projection",
    {
        "bigru": BiGRUProjection,
        "linear": LinearProjection,
        "none": NoProjection,
        "norm_linear": NormLinear,
        "residual_mlp": ResidualMLP,
    },
)


class GlobalVector(Configured, nn.Module, ABC):
    """Makes one vector from an item's raw local features. The build passes ``input_dim`` (C) and ``embed_dim`` (D)."""

    @abstractmethod
    def forward(self, local: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B D"]:
        """Return the vector of each item. Masked positions do not change it."""


class MeanVector(nn.Linear, GlobalVector):
    """One linear layer on the mean local feature, Xavier-uniform, bias 0: PVSE's global vector of images."""

    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__(input_dim, embed_dim)
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(  # type: ignore[override]
        self, local: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]
    ) -> Float[Tensor, "B D"]:
        return super().forward(masked_mean(local, mask))


class BiGRUVector(GlobalVector):
    """The last states of a bidirectional GRU, D/2 each, concatenated: PVSE's global vector of videos (ordered frames).

    Args:
        at_last: whether to take both directions' states at the last element, where the backward direction has read
            only this element, as PVSE's published models do.

    Raises:
        RecipeError: D is odd.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, at_last: bool = False) -> None:
        super().__init__()
        self.at_last = at_last
        if embed_dim % 2:
            raise RecipeError(f"bigru splits embed_dim over two directions: {embed_dim} is odd, give an even one")
        self.gru = nn.GRU(input_dim, embed_dim // 2, batch_first=True, bidirectional=True)

    def forward(self, local: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B D"]:
        local, mask = compact(local, mask)
        read = states_at_end if self.at_last else final_states
        return read(packed_gru(self.gru, local, mask), mask).transpose(0, 1).flatten(1)


GLOBAL_VECTORS: Registry[GlobalVector] = Registry("global vector", {"bigru": BiGRUVector, "mean": MeanVector})
