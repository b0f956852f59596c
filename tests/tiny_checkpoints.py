"""Checkpoints as VSE-infinity, PVSE and VSE+2AD save them: the names and shapes of their weights at tiny widths."""

from __future__ import annotations

import json
import pickle
import sys
import types
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

EMBED, WORD, REGION, HIDDEN, STEM = 8, 6, 10, 16, 4
WORDS = (
    *("<pad>", "<start>", "<end>", "<unk>", "a", "dog", "cat", "'s", "runs", "on", "the", "mat", "."),
    *("two", "s"),
)
PIECES = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "cat", "runs", "##s", "on", "the"),
    *("mat", ".", "'"),
)
CAPTIONS = ("A dog runs on the mat.", "Two cats", "The dog's mat. A cat!", "zebra", "the cat runs")
Weights = dict[str, Tensor]


def make(shapes: dict[str, tuple[int, ...]], seed: int) -> Weights:
    """Draw weights of these names and shapes; variances and scales are positive."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes.items():
        if name.endswith("num_batches_tracked"):
            weights[name] = torch.tensor(7)
        elif name.endswith(("running_var", "norm.weight", "LayerNorm.weight")) or ".bn" in f".{name}":
            weights[name] = torch.rand(shape, generator=generator) + 0.5
        else:
            weights[name] = torch.randn(shape, generator=generator) / max(1, shape[-1] if shape else 1) ** 0.5
    return weights


def linear(name: str, input_dim: int, output_dim: int, *, bias: bool = True) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (output_dim, input_dim)} | ({f"{name}.bias": (output_dim,)} if bias else {})


def norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    running: dict[str, tuple[int, ...]] = {f"{name}.num_batches_tracked": ()}
    return running | {f"{name}.{kind}": (width,) for kind in ("weight", "bias", "running_mean", "running_var")}


def gru(name: str, input_dim: int, hidden_dim: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.{kind}_l0{direction}": shape
        for direction in ("", "_reverse")
        for kind, shape in {
            "weight_ih": (3 * hidden_dim, input_dim),
            "weight_hh": (3 * hidden_dim, hidden_dim),
            "bias_ih": (3 * hidden_dim,),
            "bias_hh": (3 * hidden_dim,),
        }.items()
    }


def gpo(name: str = "gpool") -> dict[str, tuple[int, ...]]:
    return gru(f"{name}.gru", 32, 32) | linear(f"{name}.linear", 32, 1, bias=False)


def adpool(name: str = "pool") -> dict[str, tuple[int, ...]]:
    return linear(f"{name}.linear", EMBED, EMBED) | linear(f"{name}.balance", EMBED, 1)


def pie_net(name: str, input_dim: int, num_embeddings: int) -> dict[str, tuple[int, ...]]:
    return (
        linear(f"{name}.attention.w_1", input_dim, input_dim // 2, bias=False)
        | linear(f"{name}.attention.w_2", input_dim // 2, num_embeddings, bias=False)
        | linear(f"{name}.fc", input_dim, EMBED)
        | {f"{name}.layer_norm.{kind}": (EMBED,) for kind in ("weight", "bias")}
    )


def regions(*, residual: bool = True) -> dict[str, tuple[int, ...]]:
    mlp = linear("mlp.layers.0", REGION, EMBED // 2) | linear("mlp.layers.1", EMBED // 2, EMBED)
    mlp |= norm("mlp.bns.0", EMBED // 2) | norm("mlp.bns.1", EMBED)
    return linear("fc", REGION, EMBED) | (mlp if residual else {})


def resnet(name: str, blocks: tuple[int, ...] = (1, 2, 1, 1), groups: int = 1) -> dict[str, tuple[int, ...]]:
    shapes = {f"{name}conv1.weight": (STEM, 3, 7, 7)} | norm(f"{name}bn1", STEM)
    width = STEM
    for stage, count in enumerate(blocks):
        inner, output = STEM * groups // 2 * 2**stage, STEM * 4 * 2**stage
        for block in range(count):
            at = f"{name}layer{stage + 1}.{block}."
            shapes |= {f"{at}conv1.weight": (inner, width, 1, 1)} | norm(f"{at}bn1", inner)
            shapes |= {f"{at}conv2.weight": (inner, inner // groups, 3, 3)} | norm(f"{at}bn2", inner)
            shapes |= {f"{at}conv3.weight": (output, inner, 1, 1)} | norm(f"{at}bn3", output)
            if block == 0:
                shapes |= {f"{at}downsample.0.weight": (output, width, 1, 1)} | norm(f"{at}downsample.1", output)
            width = output
    return shapes


CNN_DIM = STEM * 32


def extractor(weights: Weights) -> Weights:
    """Add the second name of each weight of a CNN: the extractor holds the network and its two parts."""
    parts = {"conv1": "base.0", "bn1": "base.1", "layer1": "base.4", "layer2": "base.5", "layer3": "base.6"}
    parts["layer4"] = "top.0"
    again = {}
    for name, weight in weights.items():
        if name.startswith("backbone.resnet.") and not name.startswith("backbone.resnet.fc"):
            first, _, rest = name.removeprefix("backbone.resnet.").partition(".")
            again[f"backbone.{parts[first]}.{rest}"] = weight
    return weights | again


def bert(name: str = "bert.", layers: int = 2) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        f"{name}embeddings.word_embeddings.weight": (len(PIECES), HIDDEN),
        f"{name}embeddings.position_embeddings.weight": (24, HIDDEN),
        f"{name}embeddings.token_type_embeddings.weight": (2, HIDDEN),
        f"{name}embeddings.LayerNorm.weight": (HIDDEN,),
        f"{name}embeddings.LayerNorm.bias": (HIDDEN,),
    }
    for layer in range(layers):
        at = f"{name}encoder.layer.{layer}."
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            shapes |= linear(f"{at}{part}", HIDDEN, HIDDEN)
        shapes |= linear(f"{at}intermediate.dense", HIDDEN, 32) | linear(f"{at}output.dense", 32, HIDDEN)
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{at}{part}.{kind}": (HIDDEN,) for kind in ("weight", "bias")}
    return shapes | linear(f"{name}pooler.dense", HIDDEN, HIDDEN)


def words_gru(hidden_dim: int, rows: int) -> dict[str, tuple[int, ...]]:
    return {"embed.weight": (rows, WORD)} | gru("rnn", WORD, hidden_dim)


def parallel(weights: Weights) -> Weights:
    """Name weights as ``DataParallel`` does."""
    return {f"module.{name}": weight for name, weight in weights.items()}


def esa(*, text: str = "bigru", grid: bool = False, **options: Any) -> dict[str, Any]:
    """Return a checkpoint of ESA: VSE-infinity's, with a linear map in place of GPO."""
    return vse_infinity(text=text, grid=grid, pool=linear("linear1", EMBED, EMBED), hardnum=2, **options)


def vse_infinity(
    *,
    text: str = "bigru",
    grid: bool = False,
    groups: int = 1,
    pool: dict[str, tuple[int, ...]] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return a checkpoint of VSE-infinity: a list of two state dictionaries, and its command line as ``opt``."""
    pool = gpo() if pool is None else pool
    image = make(regions(residual=not grid) | pool, seed=1)
    if grid:
        image = make(linear("fc", CNN_DIM, EMBED) | pool, seed=1)
        cnn = make(resnet("backbone.resnet.", groups=groups) | linear("backbone.resnet.fc", CNN_DIM, 5), seed=2)
        image = extractor(cnn) | {f"image_encoder.{name}": weight for name, weight in image.items()}
    sentence = make((words_gru(EMBED, len(WORDS) + 1) if text == "bigru" else bert()) | pool, seed=3)
    if text == "bert":
        sentence |= make(linear("linear", HIDDEN, EMBED), seed=4)
        sentence["bert.embeddings.position_ids"] = torch.arange(24).unsqueeze(0)  # older transformers save it
    sides = [image, sentence]
    opt = Namespace(**({"data_name": "f30k_precomp", "margin": 0.2, "no_imgnorm": False} | options))
    return {
        "epoch": 25,
        "model": [parallel(side) for side in sides] if text == "bert" or grid else sides,
        "best_rsum": np.float64(513.25),
        "opt": opt,
        "Eiters": 5650,
    }


def vse_2ad(*, text: str = "rnn", grid: bool = False, **options: Any) -> dict[str, Any]:
    """Return a checkpoint of VSE+2AD: one state dictionary, and its command line as ``args``."""
    image = make(regions() | adpool(), seed=1)
    if grid:
        image = make(
            {n: (EMBED, CNN_DIM) if n == "fc.weight" else s for n, s in (regions() | adpool()).items()}, seed=1
        )
        image = {f"img_proj.{name}": weight for name, weight in image.items()}
        image |= extractor(make(resnet("backbone.resnet."), seed=2))
    sentence = make((words_gru(EMBED, len(WORDS) + 1) if text == "rnn" else bert()) | adpool(), seed=3)
    if text == "bert":
        sentence |= make(linear("fc", HIDDEN, EMBED), seed=4)
    model = {f"img_enc.{n}": w for n, w in image.items()} | {f"txt_enc.{n}": w for n, w in sentence.items()}
    kept = {"precomp_enc_type": "backbone" if grid else "basic", "device": torch.device("cpu")}
    return {"model": model, "rsum": 503.7, "args": Namespace(**(kept | options))}


def pvse(*, num_embeddings: int = 2, video: bool = False, **options: Any) -> dict[str, Any]:
    """Return a checkpoint of PVSE as training saves it; the released files hold its ``model`` alone."""
    # A clip's global vector comes of a GRU over its frames, an image's of one layer.
    above = gru("rnn", CNN_DIM, EMBED // 2) if video else linear("fc", CNN_DIM, EMBED)
    image = make(resnet("cnn.") | above | pie_net("pie_net", CNN_DIM, num_embeddings), seed=1)
    text = make(words_gru(EMBED // 2, len(WORDS)) | pie_net("pie_net", WORD, num_embeddings), seed=2)
    model = {f"img_enc.{n}": w for n, w in image.items()} | {f"txt_enc.{n}": w for n, w in text.items()}
    args = Namespace(**({"data_name": "coco", "legacy": False, "div_weight": 0.1, "max_violation": True} | options))
    return {"args": args, "epoch": 3, "best_score": np.float64(400.0), "model": model}


def save(checkpoint: Any, path: Path, *, zipped: bool = True) -> Path:
    """Write as ``torch.save`` does today, or as it did before PyTorch 1.6."""
    torch.save(checkpoint, path, _use_new_zipfile_serialization=zipped)
    return path


def write_vocabulary(path: Path, words: tuple[str, ...] = WORDS) -> Path:
    """Write the words as the repositories do: JSON, or a pickle of their class ``vocab.Vocabulary``."""
    fields = {"word2idx": {w: i for i, w in enumerate(words)}, "idx2word": dict(enumerate(words)), "idx": len(words)}
    if path.suffix == ".json":
        path.write_text(json.dumps(fields))
        return path
    with their_module() as module:
        vocabulary = module.Vocabulary()
        vars(vocabulary).update(fields)
        path.write_bytes(pickle.dumps(vocabulary, pickle.HIGHEST_PROTOCOL))
    return path


@contextmanager
def their_module() -> Iterator[Any]:
    """Yield a module ``vocab`` with a class ``Vocabulary`` that exists while a file is written, not when it is read."""
    module = types.ModuleType("vocab")
    vars(module)["Vocabulary"] = type("Vocabulary", (), {"__module__": "vocab"})
    sys.modules["vocab"] = module
    try:
        yield module
    finally:
        del sys.modules["vocab"]


def write_pieces(path: Path) -> Path:
    """Write the word pieces of the tiny BERT, as bert-base-uncased has them in its ``vocab.txt``."""
    path.write_text("\n".join(PIECES) + "\n")
    return path
