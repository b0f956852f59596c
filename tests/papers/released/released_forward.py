"""Forward passes from the weights alone, item by item and step by step, as the released codes compute them."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

Weights = dict[str, Tensor]


def apply(weights: Weights, name: str, x: Tensor) -> Tensor:
    """A linear layer."""
    return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def batch_norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    """BatchNorm in evaluation, over the second axis."""
    kinds = ("running_mean", "running_var", "weight", "bias")
    mean, variance, scale, shift = (weights[f"{name}.{kind}"].view(1, -1, *[1] * (x.dim() - 2)) for kind in kinds)
    return (x - mean) / (variance + 1e-5).sqrt() * scale + shift


def gru_direction(weights: Weights, name: str, words: Tensor, suffix: str = "") -> Tensor:
    """The states of one direction, in the order of its steps."""
    w_i, w_h, b_i, b_h = (
        weights[f"{name}.{kind}_l0{suffix}"] for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    state, states = torch.zeros(w_h.shape[1]), []
    for word in words:
        (r_i, z_i, n_i), (r_h, z_h, n_h) = (w_i @ word + b_i).chunk(3), (w_h @ state + b_h).chunk(3)
        reset, update = torch.sigmoid(r_i + r_h), torch.sigmoid(z_i + z_h)
        state = (1 - update) * torch.tanh(n_i + reset * n_h) + update * state
        states.append(state)
    return torch.stack(states)


def bigru(weights: Weights, name: str, words: Tensor) -> tuple[Tensor, Tensor]:
    """The states of both directions, each at the word that it belongs to."""
    backward = gru_direction(weights, name, words.flip(0), "_reverse").flip(0)
    return gru_direction(weights, name, words), backward


def gpo(weights: Weights, local: Tensor) -> Tensor:
    """Sort each dimension, and sum with coefficients that a BiGRU reads off the positions."""
    size = len(local)
    codes = torch.zeros(size, 32)
    for position in range(size):
        for j in range(16):
            angle = position * math.exp(-2 * j * math.log(10000.0) / 32)
            codes[position, 2 * j], codes[position, 2 * j + 1] = math.sin(angle), math.cos(angle)
    forward, backward = bigru(weights, "gpool.gru", codes)
    theta = (apply(weights, "gpool.linear", (forward + backward) / 2) / 0.1).softmax(dim=0)
    return unit((theta * local.sort(dim=0, descending=True).values).sum(dim=0))


def external_attention(weights: Weights, local: Tensor) -> Tensor:
    """Weight each element in each dimension by the softmax of a linear map."""
    return unit((apply(weights, "linear1", local).softmax(dim=0) * local).sum(dim=0))


def adpool(weights: Weights, local: Tensor, padding: int = 0) -> Tensor:
    """Pool by token weights, of which padding takes its share, and by embedding weights; balance the two."""
    ranked = torch.cat((local.sort(dim=0, descending=True).values, torch.zeros(padding, local.shape[1])))
    token = (apply(weights, "pool.linear", ranked).relu().softmax(dim=0) * ranked).sum(dim=0)
    embedding = (local.softmax(dim=0) * local).sum(dim=0)
    both = torch.stack((token, embedding))
    return unit((apply(weights, "pool.balance", both).softmax(dim=0) * both).sum(dim=0))


def pie_net(weights: Weights, pooled: Tensor, local: Tensor) -> Tensor:
    """K embeddings: the global vector, each with what one attention finds."""
    heads = apply(weights, "pie_net.attention.w_2", apply(weights, "pie_net.attention.w_1", local).tanh())
    residual = apply(weights, "pie_net.fc", heads.softmax(dim=0).T @ local).sigmoid()
    z = pooled + residual
    z = (z - z.mean(dim=1, keepdim=True)) / (z.var(dim=1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return unit(z * weights["pie_net.layer_norm.weight"] + weights["pie_net.layer_norm.bias"])


def regions(weights: Weights, rows: Tensor) -> Tensor:
    """A linear layer, and beside it two with BatchNorm and ReLU between."""
    hidden = batch_norm(weights, "mlp.bns.0", apply(weights, "mlp.layers.0", rows)).relu()
    return apply(weights, "fc", rows) + apply(weights, "mlp.layers.1", hidden)


def resnet(weights: Weights, begin: str, pixels: Tensor, *, caffe: bool) -> Tensor:
    """The cells of one image, ``[N, C]``."""
    x = F.conv2d(pixels.unsqueeze(0), weights[f"{begin}conv1.weight"], stride=2, padding=3)
    x = batch_norm(weights, f"{begin}bn1", x).relu()
    # In the Caffe form the last window may hang over the edge.
    x = F.max_pool2d(x, 3, stride=2, padding=0 if caffe else 1, ceil_mode=caffe)
    for stage in range(1, 5):
        block = 0
        while f"{begin}layer{stage}.{block}.conv1.weight" in weights:
            stride = 2 if stage > 1 and block == 0 else 1
            x = _bottleneck(weights, f"{begin}layer{stage}.{block}.", x, stride, caffe=caffe)
            block += 1
    return x[0].flatten(1).T


def _bottleneck(weights: Weights, at: str, x: Tensor, stride: int, *, caffe: bool) -> Tensor:
    first, second = (stride, 1) if caffe else (1, stride)
    middle = weights[f"{at}conv2.weight"]
    inner = F.conv2d(x, weights[f"{at}conv1.weight"], stride=first)
    groups = inner.shape[1] // middle.shape[1]
    inner = batch_norm(weights, f"{at}bn1", inner).relu()
    inner = F.conv2d(inner, middle, stride=second, padding=1, groups=groups)
    inner = batch_norm(weights, f"{at}bn2", inner).relu()
    inner = batch_norm(weights, f"{at}bn3", F.conv2d(inner, weights[f"{at}conv3.weight"]))
    if f"{at}downsample.0.weight" in weights:
        shortcut = F.conv2d(x, weights[f"{at}downsample.0.weight"], stride=stride)
        x = batch_norm(weights, f"{at}downsample.1", shortcut)
    return (inner + x).relu()


def bert(weights: Weights, ids: Tensor, layers: int) -> Tensor:
    """The last states of one sentence, by a BERT with one head."""
    tables = [weights[f"bert.embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")]
    x = layer_norm(weights, "bert.embeddings.LayerNorm", tables[0][ids] + tables[1][: len(ids)] + tables[2][0])
    for layer in range(layers):
        at = f"bert.encoder.layer.{layer}."
        query, key, value = (apply(weights, f"{at}attention.self.{n}", x) for n in ("query", "key", "value"))
        attended = (query @ key.T / math.sqrt(x.shape[1])).softmax(dim=1) @ value
        x = layer_norm(
            weights, f"{at}attention.output.LayerNorm", x + apply(weights, f"{at}attention.output.dense", attended)
        )
        inner = apply(weights, f"{at}intermediate.dense", x)
        inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
        x = layer_norm(weights, f"{at}output.LayerNorm", x + apply(weights, f"{at}output.dense", inner))
    return x


def layer_norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    """BERT's, whose epsilon is smaller than PyTorch's default."""
    x = (x - x.mean(dim=1, keepdim=True)) / (x.var(dim=1, unbiased=False, keepdim=True) + 1e-12).sqrt()
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def unit(x: Tensor) -> Tensor:
    """Divide by the length."""
    return x / x.pow(2).sum(dim=-1, keepdim=True).sqrt()


def below(weights: Weights, begin: str) -> Weights:
    """The weights below a beginning, without it; ``module.`` of parallel training goes."""
    plain = {name.removeprefix("module."): weight for name, weight in weights.items()}
    return {name.removeprefix(begin): weight for name, weight in plain.items() if name.startswith(begin)}
