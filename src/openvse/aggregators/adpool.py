"""Adaptive pooling, the aggregator of VSE+2AD."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.aggregators.base import Pooling
from openvse.errors import RecipeError
from openvse.functional import MASKED, position_mask, soft_pool, sort_descending


class AdPool(Pooling):
    """A learned balance between weighting sorted elements and a soft maximum of each dimension.

    ``v = w_1 tok + w_2 emb``, ``w = softmax([tok W_bal, emb W_bal])`` (VSE+2AD, eq. 5).
    ``tok = sum_n theta_n u_n``, ``theta = softmax_n(u_n W_tok)``, u sorted in each dimension (eq. 3).
    ``emb_d = sum_n softmax_n(x_nd) x_nd`` (eq. 4).

    Deviation: padding is masked. In the released code the token weights of eq. 3 count it, so that the vector of a
    sentence depends on its batch; eq. 4 masks it there too.

    Args:
        token_weights: ``scalar`` is one theta for all dimensions, W_tok of shape L x 1 (the paper);
            ``per_dimension`` is one theta for each, ``softmax_n(relu(u_n W_tok + b))`` (the released code).
        token_start: the initial values of W_tok: ``uniform``, within 1 / sqrt(L) as PyTorch starts a layer, or
            ``xavier``, uniform within sqrt(6 / (inputs + outputs)), with b at 0. The released code starts
            ``per_dimension`` with ``xavier``, whose weights are 1.7 times as large.
        balance: w_1, the share of the token level: ``learned`` (eq. 5), a fixed number from 0 to 1 (appendix C, Table
            2), or ``random``, a number that is drawn once, when the model is made. At 1 only the token level is left
            (Table 3); at 0, the aggregator is ``soft_pool`` with token weights that are not used.
        count_padding: whether padding takes its share of the token weights, as zeros behind the sorted elements, as
            in the released code; an index cannot serve such embeddings.

    Raises:
        RecipeError: the balance is not in [0, 1].
    """

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        token_weights: Literal["scalar", "per_dimension"] = "scalar",
        count_padding: bool = False,
        token_start: Literal["uniform", "xavier"] = "uniform",
        balance: float | Literal["learned", "random"] = "learned",
    ) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        self.count_padding = count_padding
        self.indexable = not count_padding
        scalar = token_weights == "scalar"
        layer = nn.Linear(input_dim, 1 if scalar else input_dim, bias=not scalar)
        if token_start == "xavier":
            nn.init.xavier_uniform_(layer.weight)
            if not scalar:
                nn.init.zeros_(layer.bias)
        self.token = layer if scalar else nn.Sequential(layer, nn.ReLU())
        share = None if isinstance(balance, str) else float(balance)
        if share is not None and not 0 <= share <= 1:
            raise RecipeError(f"adpool got balance = {balance}: give a number from 0 to 1, learned or random")
        learned = balance == "learned"
        self.balance = nn.Linear(input_dim, 1, bias=False) if learned else None
        self.share: Tensor | None
        self.register_buffer(
            "share", None if learned else torch.rand(()) if share is None else torch.tensor(share)
        )

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        token, embedding = self._token_level(local, mask), soft_pool(local, mask)
        if self.balance is None:
            assert self.share is not None
            return self.share * token + (1 - self.share) * embedding
        both = torch.stack((token, embedding), dim=1)
        weights: Tensor = self.balance(both).softmax(dim=1)
        return (weights * both).sum(dim=1)

    def _token_level(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        ranked = sort_descending(local, mask).transpose(1, 2)
        logits: Tensor = self.token(ranked)
        if not self.count_padding:
            padding = ~position_mask(mask.sum(dim=1), mask.shape[1]).unsqueeze(-1)
            logits = logits.masked_fill(padding, MASKED)
        return (logits.softmax(dim=1) * ranked).sum(dim=1)
