"""Poolings that learn the weight of each element, or a map of all of them."""

from __future__ import annotations

import math
from typing import Literal, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from openvse.aggregators.simple import Aggregator, Pooling, RankedPooling, SingleVector, require_same_width
from openvse.errors import ModelError, RecipeError
from openvse.functional import (
    MASKED,
    compact,
    distinct_sizes,
    interpolate,
    masked_max,
    masked_mean,
    of_values,
    padding,
    soft_pool,
    sort_descending,
)
from openvse.kernels import is_traced, shapes_are_fixed
from openvse.layers.attention import Attention, AttentionScores, check_heads, checked_dropout, xavier_linear
from openvse.layers.recurrence import packed_gru, states_at_end
from openvse.types import EmbeddingSet, Features


class AttentionPool(Pooling):
    """``v = sum_n a_n x_n``, ``a = softmax_n(w . x_n)``: the global vectors of HGR (Chen et al., CVPR 2020).

    There is no bias, as it would shift all logits alike.
    """

    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        self.weight = nn.Linear(input_dim, 1, bias=False)

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        padding = ~mask.unsqueeze(-1)
        local = local.masked_fill(padding, 0.0)
        weights: Tensor = self.weight(local).masked_fill(padding, MASKED).softmax(dim=1)
        return (weights * local).sum(dim=1)


class ExternalAttention(Pooling):
    """``v_d = sum_n softmax_n((A x_n)_d) x_nd``: external space attention (ESA, Zhu et al., TCSVT 2023).

    Each dimension has its own distribution over the elements. ``soft_pool`` is the case A = I. ``lip`` normalises and
    bounds the logits. Deviation: the released A x_n + b has a bias, which shifts all logits of a dimension alike and so
    changes no weight. Here there is none.
    """

    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        self.attention = nn.Linear(input_dim, input_dim, bias=False)
        nn.init.xavier_uniform_(self.attention.weight)

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        local = local.masked_fill(~mask.unsqueeze(-1), 0.0)
        return soft_pool(local, mask, self.attention(local))


LARGEST_LOGIT = 12.0  # an element outweighs another by e^12 at most
EPS = 1e-5


class LIP(Pooling):
    """``v_d = sum_n softmax_n(G(x)_nd) x_nd`` with a learned importance G (Gao et al. 2019, eq. 3).

    ``G(x) = 12 sigmoid(InstanceNorm(W x))`` is the paper's simplified form, with a linear map in place of its
    convolution. The norm is over the elements of an item, in each dimension, with a learned scale and shift.
    """

    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        self.importance = nn.Linear(input_dim, input_dim, bias=False)
        self.scale = nn.Parameter(torch.ones(input_dim))
        self.shift = nn.Parameter(torch.zeros(input_dim))

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        local = local.masked_fill(~mask.unsqueeze(-1), 0.0)
        raw: Tensor = self.importance(local)
        centred = raw - masked_mean(raw, mask).unsqueeze(1)
        variance = masked_mean(centred.square(), mask).unsqueeze(1)
        logits: Tensor = LARGEST_LOGIT * (self.scale * centred * (variance + EPS).rsqrt() + self.shift).sigmoid()
        return soft_pool(local, mask, logits)


class FSPool(RankedPooling):
    """``v_d = sum_k w_d(k / (N - 1)) max_k(x_d)``: sorted values, weighted separately in each dimension.

    w_d is piecewise linear between learned knots on [0, 1], so that one curve serves sets of any size (Zhang,
    Hare and Pruegel-Bennett 2020, eq. 2 to 4). The weights are free: they need not be positive or sum to 1.

    Args:
        num_pieces: the number of linear pieces of a curve, one fewer than its knots.

    Raises:
        RecipeError: ``num_pieces`` is below 1.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, num_pieces: int = 20) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        if num_pieces < 1:
            raise RecipeError(f"fs_pool got num_pieces = {num_pieces}: it must be at least 1 (usual: 20)")
        self.knots = nn.Parameter(torch.randn(num_pieces + 1, input_dim))

    def pool_ranked(self, ranked: Float[Tensor, "B L N"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        """Sum the sorted values of each dimension with its curve, computed once for each distinct size."""
        if shapes_are_fixed():  # the number of distinct sizes must not decide a shape
            curves = interpolate(self.knots, mask.sum(dim=1), mask.shape[1])
            return (ranked * curves.transpose(1, 2).to(ranked.dtype)).sum(dim=2)
        sizes, group = of_values(mask, distinct_sizes)
        return self.sum_by_dimension(ranked, interpolate(self.knots, sizes), group)


class SelfAttention(Pooling):
    """``v = 1/N sum_n (x_n + sum_m softmax_m(q_n . k_m / sqrt(L)) v_m)`` (VSE-infinity, Table 1, SelfAttn).

    The paper gives no formula. Queries, keys and values as linear maps of the elements, and a residual connection, are
    usual, and have 3.1 M parameters at a width of 1024. With a layer normalisation of the sum and a bias of the keys,
    as in a Transformer, there are 3.2 M, as the paper reports.

    Args:
        layer_norm: whether to normalise each element after the sum, and to give the keys a bias.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, layer_norm: bool = False) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        # A bias of the keys shifts all scores of a query equally, which does not change the softmax.
        self.query = nn.Linear(input_dim, input_dim)
        self.key = nn.Linear(input_dim, input_dim, bias=layer_norm)
        self.value = nn.Linear(input_dim, input_dim)
        self.norm = nn.LayerNorm(input_dim) if layer_norm else nn.Identity()

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        local = local.masked_fill(~mask.unsqueeze(-1), 0.0)
        query, key, value, real = self.query(local), self.key(local), self.value(local), mask.unsqueeze(1)
        if is_traced():  # ONNX has attention with heads only
            query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
            heads = F.scaled_dot_product_attention(query, key, value, attn_mask=real.unsqueeze(1))
            read = heads.squeeze(1)
        else:
            read = F.scaled_dot_product_attention(query, key, value, attn_mask=real)
        return masked_mean(self.norm(local + read), mask)


class ScoreAttention(Aggregator):
    """``v_k = sum_n S_kn(X, X) x_n`` after self-attention: the paper's reduction with one modality on both sides.

    The paper takes keys and values from the other modality (similarity ``fused``), whose scores an index cannot serve.
    Within one modality the result depends only on the item. With k > 1 reductions, each one is an embedding.

    Args:
        num_heads: the number of heads of both attentions.
        num_vectors: k, the number of reductions.

    Raises:
        RecipeError: L differs from D, L is not a multiple of the number of heads, or k is below 1.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, num_heads: int = 8, num_vectors: int = 1) -> None:
        super().__init__()
        require_same_width("score_attention", input_dim, embed_dim)
        self.attention = Attention(embed_dim, num_heads)
        self.scores = AttentionScores(embed_dim, num_heads, num_vectors)

    def forward(self, features: Features) -> EmbeddingSet:
        """Let the real elements attend to each other, score them, and sum them weighted by their scores."""
        local = self._read(features)
        return EmbeddingSet.full(self.scores(local, features.mask, local, features.mask) @ local)

    def attended(self, features: Features) -> Float[Tensor, "B K N"]:
        """Return the weights with which the elements are summed. See ``Attends``."""
        local, mask = self._read(features), features.mask
        return cast(Tensor, self.scores(local, mask, local, mask))

    def _read(self, features: Features) -> Float[Tensor, "B N D"]:
        """Let the real elements attend to each other."""
        mask = features.mask
        return self.attention.read_itself(features.local.masked_fill(~mask.unsqueeze(-1), 0.0), mask)


class Conv1d(SingleVector):
    """``v = sum_n W_n x_n + b``: a convolution whose kernel is as long as the sequence (score attention, IV-C).

    A shorter sequence uses the first N matrices. Elements beyond ``length`` are not read.

    Args:
        length: the number of elements that the kernel spans. Its weights are length x L x D.

    Raises:
        RecipeError: a length below 1.
    """

    order_aware = True

    def __init__(self, *, input_dim: int, embed_dim: int, length: int = 64) -> None:
        super().__init__()
        if length < 1:
            raise RecipeError(f"conv1d got length = {length}: give the longest sequence, at least 1")
        bound = 1 / math.sqrt(length * input_dim)  # as PyTorch starts a convolution of this size
        self.kernel = nn.Parameter(torch.empty(length, input_dim, embed_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(embed_dim).uniform_(-bound, bound))

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B D"]:
        """Convolve the real elements, each with the matrix of its position."""
        real = local.masked_fill(~mask.unsqueeze(-1), 0.0)
        if is_traced():  # the program is for sets of any size
            real = F.pad(real, (0, 0, 0, len(self.kernel)))
        real = real[:, : len(self.kernel)]
        return torch.einsum("bnl,nld->bd", real, self.kernel[: real.shape[1]]) + self.bias


class Seq2Seq(SingleVector):
    """The last state of a GRU that reads the elements in their order (VSE-infinity, Table 1, Seq2Seq).

    Args:
        embed_dim: D, the width of the state. At 1024 there are 6.3 M parameters, as published.
    """

    order_aware = True

    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__()
        self.gru = nn.GRU(input_dim, embed_dim, batch_first=True)

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B D"]:
        # Size augmentation leaves gaps, and the network reads the remaining elements as one sequence.
        local, mask = compact(local, mask)
        return states_at_end(packed_gru(self.gru, local, mask), mask)[0]


class Autoencoder(Aggregator):
    """``h = sigmoid(W x + b)``, where x is the mean of the raw local features (Feng et al., ACM Multimedia 2014).

    The embedding is h. The set also carries h before it is scaled (``residual``) and x (``source``), which the term
    ``correspondence`` reconstructs from h. The decoders belong to this term, as a trained model needs none.

    Deviation: the paper first trains restricted Boltzmann machines on each side. Here x is a feature of a network, and
    the code has one layer.

    Args:
        input_dim: L, the width of the raw local features, which the encoder does not project.
        embed_dim: D, the width of the code.
    """

    yields_residual = True
    yields_source = True

    def __init__(self, *, input_dim: int, embed_dim: int) -> None:
        super().__init__()
        self.code = xavier_linear(input_dim, embed_dim)

    def forward(self, features: Features) -> EmbeddingSet:
        """Encode the mean of each item (K = 1)."""
        source = masked_mean(features.local, features.mask)
        code: Tensor = self.code(source).sigmoid().unsqueeze(1)
        return EmbeddingSet.full(code, code, source)


HEAD_DIM = 64  # in every published SigLIP, except the shape-optimised ones with 72


class MapHead(Pooling):
    """``z + MLP(LN(z))``, where ``z`` is the result of a learned query that attends to the elements with several heads.

    It is the multi-head attention pooling of Zhai et al. (Scaling Vision Transformers, CVPR 2022, section 2.3), with
    which SigLIP makes the embedding of an image from its patches.

    Args:
        num_heads: the number of heads. None means one for each 64 dimensions, and at least one.
        activation: the activation of the MLP: gelu, or gelu_tanh, its approximation by a hyperbolic tangent.
        eps: the number added to the variance in the normalisation.

    Raises:
        RecipeError: the widths differ, or the heads do not divide them.
    """

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        num_heads: int | None = None,
        hidden_dim: int | None = None,
        activation: Literal["gelu", "gelu_tanh"] = "gelu_tanh",
        eps: float = 1e-6,
    ) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        heads = num_heads if num_heads is not None else max(1, embed_dim // HEAD_DIM)
        check_heads(embed_dim, heads)
        self.approximate = "tanh" if activation == "gelu_tanh" else "none"
        self.probe = nn.Parameter(torch.empty(1, 1, embed_dim))
        nn.init.xavier_uniform_(self.probe)
        self.attention = nn.MultiheadAttention(embed_dim, heads, batch_first=True)
        self.layernorm = nn.LayerNorm(embed_dim, eps=eps)
        hidden = hidden_dim or 4 * embed_dim
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(embed_dim, hidden), "fc2": nn.Linear(hidden, embed_dim)})

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        local = local.masked_fill(~mask.unsqueeze(-1), 0.0)
        probe = self.probe.expand(local.shape[0], -1, -1)
        read, _ = self.attention(probe, local, local, key_padding_mask=~mask, need_weights=False)
        hidden = F.gelu(self.mlp["fc1"](self.layernorm(read)), approximate=self.approximate)
        return cast(Tensor, (read + self.mlp["fc2"](hidden)).squeeze(1))


class AdPool(Pooling):
    """A learned balance between weighting sorted elements and a soft maximum of each dimension.

    ``v = w_1 tok + w_2 emb``, ``w = softmax([tok W_bal, emb W_bal])`` (VSE+2AD, eq. 5).
    ``tok = sum_n theta_n u_n``, ``theta = softmax_n(u_n W_tok)``, u sorted in each dimension (eq. 3).
    ``emb_d = sum_n softmax_n(x_nd) x_nd`` (eq. 4).

    Deviation: padding is masked. In the released code the token weights of eq. 3 count it, so that the vector of a
    sentence depends on its batch, while eq. 4 masks it there too.

    Args:
        token_weights: ``scalar`` is one theta for all dimensions, W_tok of shape L x 1 (the paper). ``per_dimension``
            is one theta for each, ``softmax_n(relu(u_n W_tok + b))`` (the released code).
        token_start: the initial values of W_tok: ``uniform``, within 1 / sqrt(L) as PyTorch starts a layer, or
            ``xavier``, uniform within sqrt(6 / (inputs + outputs)), with b at 0. The released code starts
            ``per_dimension`` with ``xavier``, whose weights are 1.7 times as large.
        balance: w_1, the share of the token level: ``learned`` (eq. 5), a fixed number from 0 to 1 (appendix C, Table
            2), or ``random``, a number drawn once, when the model is made. At 1 only the token level is left (Table 3).
            At 0, the aggregator is ``soft_pool`` with unused token weights.
        count_padding: whether padding takes its share of the token weights, as zeros after the sorted elements, as in
            the released code. An index cannot serve such embeddings.

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
        self.register_buffer("share", None if learned else torch.rand(()) if share is None else torch.tensor(share))

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
            logits = logits.masked_fill(of_values(mask, padding)[1].unsqueeze(-1), MASKED)
        return (logits.softmax(dim=1) * ranked).sum(dim=1)


class PIENet(Aggregator):
    """K embeddings of an item: its global vector plus what each of K attention maps finds in the local features.

    ``alpha = softmax_n(w_2 tanh(w_1 x_n))`` with K heads, ``r_k = sigmoid(w_3 sum_n alpha_kn x_n + b_3)``,
    ``z_k = LayerNorm(pooled + r_k)`` (PVSE, eq. 2 to 4). The diversity term acts on the residual r.

    Args:
        input_dim: L, the width of the raw local features, which the encoder does not project.
        embed_dim: D, which is also the width of the global vector.
        num_embeddings: K. 0 leaves only the global vector (Fig. 5), which is VSE++ on the same encoders.
        with_global: whether the global vector is added. Without it, ``z_k = LayerNorm(r_k)`` (No Global, Fig. 6).
        combine: how the global vector and a residual are combined: ``add``, or ``concatenate`` for
            ``z_k = LayerNorm([pooled, r_k])``, which is 2 D wide (No Residual, Fig. 6).
        joined: whether the K embeddings become a single one, K times as wide, so that a pair has one cosine (No MIL,
            Fig. 6). Such a set has no residual.

    Raises:
        RecipeError: K is below 0, or there is no global vector although the other options need one.
    """

    needs_pooled = True
    yields_residual = True

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        num_embeddings: int = 2,
        with_global: bool = True,
        combine: Literal["add", "concatenate"] = "add",
        joined: bool = False,
    ) -> None:
        super().__init__()
        if not with_global and (combine == "concatenate" or num_embeddings == 0):
            raise RecipeError(
                "pie_net has with_global: false, but num_embeddings: 0 and combine: concatenate need it: change one"
            )
        self.needs_pooled, self.yields_residual = with_global, not joined
        self.combine, self.joined = combine, joined
        if num_embeddings < 0:
            raise RecipeError(f"pie_net got num_embeddings = {num_embeddings}: it must be at least 0 (usual: 1 to 8)")
        self.num_embeddings = num_embeddings
        if num_embeddings == 0:
            self.yields_residual = False
            return
        hidden_dim = max(1, input_dim // 2)
        self.hidden = nn.Linear(input_dim, hidden_dim, bias=False)
        self.heads = nn.Linear(hidden_dim, num_embeddings, bias=False)
        self.residual = nn.Linear(input_dim, embed_dim)
        width = 2 if combine == "concatenate" else 1
        self.widens = width * num_embeddings if joined else width
        self.norm = nn.LayerNorm(width * embed_dim)
        for layer in (self.hidden, self.heads, self.residual):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.residual.bias)

    def forward(self, features: Features) -> EmbeddingSet:
        """Make ``vectors`` and ``residual``, ``[B, K, D]``. Raise ModelError if there is no global vector."""
        if self.needs_pooled and features.pooled is None:
            raise ModelError("pie_net needs Features.pooled: set global_vector: mean (images) or output: words (bigru)")
        if self.num_embeddings == 0:
            assert features.pooled is not None
            vectors = features.pooled.unsqueeze(1)
            return EmbeddingSet.full(vectors)
        local = features.local.masked_fill(of_values(features.mask, padding)[0].unsqueeze(-1), 0.0)
        attention = self._heads(local, features.mask)
        residual = self.residual(torch.einsum("bnk,bnl->bkl", attention, local)).sigmoid()
        vectors = self.norm(self._combined(features.pooled, residual))
        if self.joined:
            vectors = vectors.flatten(1).unsqueeze(1)
        return EmbeddingSet.full(vectors, None if self.joined else residual)

    def attended(self, features: Features) -> Float[Tensor, "B K N"]:
        """Return the attention maps of the heads. See ``Attends``."""
        local = features.local.masked_fill(~features.mask.unsqueeze(-1), 0.0)
        return self._heads(local, features.mask).transpose(1, 2)

    def _heads(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N K"]:
        scores: Tensor = self.heads(self.hidden(local).tanh())
        return scores.masked_fill(of_values(mask, padding)[0].unsqueeze(-1), MASKED).softmax(dim=1)

    def _combined(
        self, pooled: Float[Tensor, "B D"] | None, residual: Float[Tensor, "B K D"]
    ) -> Float[Tensor, "B K d"]:
        if pooled is None or not self.needs_pooled:
            return residual
        repeated = pooled.unsqueeze(1)
        if self.combine == "add":
            return repeated + residual
        return torch.cat([repeated.expand_as(residual), residual], dim=2)


_EPS = 1e-7  # of the released code, for a slot that wins nothing


class SlotAttention(Aggregator):
    """K embeddings of an item: its global vector plus K slots that divide the local features among them.

    The slots are learned vectors q_k, which ``depth`` blocks with shared weights refine (DivE, Kim et al., CVPR 2023,
    in the pre-norm form of its released code)::

        a_kn = softmax_k( (W_q LN(s_k))^T (W_k (LN(x_n) + p_n)) / sqrt(d) )      the slots compete for each element
        s_k += drop( W_o sum_n a_kn W_v LN(x_n) / sum_n a_kn )                   in each head
        s_k += W_2 drop( GELU(W_1 LN(s_k)) )
        z_k  = LN(global) + LN(s_k)

    The residual, on which ``set_uniformity`` and ``diversity`` act, is LN(s_k).

    Deviation: in the released code padding takes part, and positions are shares of the batch's longest caption.

    Args:
        embed_dim: D, which is also the width of the slots and of the global vector.
        num_embeddings: K. 4 in the paper.
        depth: the number of blocks.
        num_heads: the heads of the attention, each ``head_dim`` = d wide.
        head_dim: d.
        dropout: the probability that a feature of an update is dropped in training.
        global_vector: ``max``, the maximum of the local features in each dimension (L = D), or ``pooled``, the global
            vector of the encoder: the GRU's for texts, whose local features are then word vectors.
        positions: ``sine`` adds sines and cosines of ``2 pi n / N``, times the frequencies of the Transformer, to the
            keys, as DivE does for words.

    Raises:
        RecipeError: a number is out of range, or ``global_vector: max`` has L other than D.
    """

    yields_residual = True

    def __init__(
        self,
        *,
        input_dim: int,
        embed_dim: int,
        num_embeddings: int = 4,
        depth: int = 4,
        num_heads: int = 4,
        head_dim: int = 512,
        dropout: float = 0.1,
        global_vector: Literal["max", "pooled"] = "max",
        positions: Literal["none", "sine"] = "none",
    ) -> None:
        super().__init__()
        if min(num_embeddings, depth, num_heads, head_dim) < 1:
            raise RecipeError(
                f"slot_attention got num_embeddings = {num_embeddings}, depth = {depth}, num_heads = {num_heads} and "
                f"head_dim = {head_dim}: each must be at least 1"
            )
        self.needs_pooled, self.order_aware = global_vector == "pooled", positions == "sine"
        if not self.needs_pooled:
            require_same_width("slot_attention with global_vector: max", input_dim, embed_dim)
        self.depth, self.num_heads = depth, num_heads
        inner_dim = num_heads * head_dim
        self.slots = nn.Parameter(torch.randn(num_embeddings, embed_dim))
        self.norm_local, self.norm_slots = nn.LayerNorm(input_dim), nn.LayerNorm(embed_dim)
        self.query = nn.Linear(embed_dim, inner_dim, bias=False)
        self.key = nn.Linear(input_dim, inner_dim, bias=False)
        self.value = nn.Linear(input_dim, inner_dim, bias=False)
        self.update = nn.Sequential(nn.Linear(inner_dim, embed_dim), nn.Dropout(checked_dropout(dropout)))
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(embed_dim),
            nn.Linear(embed_dim, 4 * embed_dim),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * embed_dim, embed_dim),
        )
        self.norm, self.norm_global = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)

    def forward(self, features: Features) -> EmbeddingSet:
        """Make K embeddings of each item. ``vectors`` and ``residual`` are ``[B, K, D]``.

        Raises:
            ModelError: there is no global vector, and ``global_vector`` is ``pooled``.
        """
        whole = features.pooled if self.needs_pooled else masked_max(features.local, features.mask)
        if whole is None:
            raise ModelError("slot_attention with global_vector: pooled needs an encoder that makes a global vector")
        residual = self.norm(self._refined(features)[0])
        return EmbeddingSet.full(self.norm_global(whole).unsqueeze(1) + residual, residual)

    def attended(self, features: Features) -> Float[Tensor, "B K N"]:
        """Return the weights of the last block, averaged over its heads. See ``Attends``."""
        return self._refined(features)[1].mean(dim=1)

    def _refined(self, features: Features) -> tuple[Float[Tensor, "B K D"], Float[Tensor, "B H K N"]]:
        """Return the slots after the last block, and the weights with which that block read the local features."""
        mask = features.mask
        local = self.norm_local(features.local.masked_fill(~mask.unsqueeze(-1), 0.0))
        # The blocks share their weights, so keys and values are the same in all of them.
        placed = local + _sines(local, mask) if self.order_aware else local
        keys, values = self._heads(self.key(placed)), self._heads(self.value(local))
        slots = self.slots.expand(local.shape[0], -1, -1)  # len() of a tensor is a constant in an export
        for _ in range(self.depth):
            query = self._heads(self.query(self.norm_slots(slots)))
            shares = (query @ keys.mT * query.shape[3] ** -0.5).softmax(dim=2)
            shares = shares.masked_fill(~mask[:, None, None], 0.0)
            weights = shares / (shares.sum(dim=3, keepdim=True) + _EPS)
            slots = slots + self.update((weights @ values).transpose(1, 2).flatten(2))
            slots = slots + self.feed_forward(slots)
        return slots, weights

    def _heads(self, x: Float[Tensor, "B n E"]) -> Float[Tensor, "B H n d"]:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


def _sines(local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N L"]:
    """Return sines (even columns) and cosines (odd ones) of the place of each element in its item, from 0 to 2 pi."""
    count = mask.cumsum(dim=1).to(torch.promote_types(local.dtype, torch.float32))
    column = torch.arange(local.shape[2], device=mask.device)
    slowness = 10_000 ** (2 * (column // 2).to(count.dtype) / local.shape[2])
    angles = (2 * math.pi * count / (count[:, -1:] + 1e-6)).unsqueeze(2) / slowness
    return torch.where(column % 2 == 1, angles.cos(), angles.sin()).to(local.dtype)
