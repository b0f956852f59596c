"""OpenCLIP's own files: embeddings from its formulas, and its preprocessing by Pillow alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

import openvse
from openvse.conversion.convert import convert
from openvse.errors import CheckpointError
from tests.dual_checkpoints import CAPTIONS, write_tokenizer

pytestmark = pytest.mark.medium

WIDTH, HEADS, TEXT_WIDTH, TEXT_HEADS, EMBED = 24, 2, 20, 4, 12
MODEL: dict[str, Any] = {
    "embed_dim": EMBED,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": WIDTH, "head_width": 12, "patch_size": 8},
    "text_cfg": {"context_length": 16, "vocab_size": 30, "width": TEXT_WIDTH, "heads": TEXT_HEADS, "layers": 2},
}
MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.25, 0.5]


def block(name: str, width: int) -> dict[str, tuple[int, ...]]:
    norms = {f"{name}{norm}.{kind}": (width,) for norm in ("ln_1", "ln_2") for kind in ("weight", "bias")}
    return norms | {
        f"{name}attn.in_proj_weight": (3 * width, width),
        f"{name}attn.in_proj_bias": (3 * width,),
        f"{name}attn.out_proj.weight": (width, width),
        f"{name}attn.out_proj.bias": (width,),
        f"{name}mlp.c_fc.weight": (4 * width, width),
        f"{name}mlp.c_fc.bias": (4 * width,),
        f"{name}mlp.c_proj.weight": (width, 4 * width),
        f"{name}mlp.c_proj.bias": (width,),
    }


def make_weights(text: str = "") -> dict[str, Tensor]:
    """Draw weights by OpenCLIP's names; ``text`` begins those of a text tower of its own."""
    shapes: dict[str, tuple[int, ...]] = {
        "visual.class_embedding": (WIDTH,),
        "visual.conv1.weight": (WIDTH, 3, 8, 8),
        "visual.positional_embedding": (17, WIDTH),
        "visual.proj": (WIDTH, EMBED),
        f"{text}token_embedding.weight": (30, TEXT_WIDTH),
        f"{text}positional_embedding": (16, TEXT_WIDTH),
        f"{text}text_projection": (TEXT_WIDTH, EMBED),
        "logit_scale": (),
    }
    for norm, width in {"visual.ln_pre": WIDTH, "visual.ln_post": WIDTH, f"{text}ln_final": TEXT_WIDTH}.items():
        shapes |= {f"{norm}.{kind}": (width,) for kind in ("weight", "bias")}
    for layer in range(2):
        shapes |= block(f"visual.transformer.resblocks.{layer}.", WIDTH)
        shapes |= block(f"{text}transformer.resblocks.{layer}.", TEXT_WIDTH)
    generator = torch.Generator().manual_seed(0)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def save(folder: Path, *, text: str = "", **model: Any) -> dict[str, Tensor]:
    folder.mkdir()
    weights = make_weights(text)
    save_file(weights, folder / "open_clip_model.safetensors")
    preprocessing = {"mean": MEAN, "std": STD, "interpolation": "bicubic", "resize_mode": "shortest"}
    config = {"model_cfg": MODEL | model, "preprocess_cfg": preprocessing}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    write_tokenizer("clip", folder)
    return {name.removeprefix("text."): weight for name, weight in weights.items()}


def transform(x: Tensor, w: dict[str, Tensor], begin: str, heads: int, act: Any, mask: Tensor | None) -> Tensor:
    """Run the blocks on one sequence ``[N, C]``."""
    for layer in range(2):
        own = {n.removeprefix(f"{begin}{layer}."): v for n, v in w.items() if n.startswith(f"{begin}{layer}.")}
        normed = F.layer_norm(x, x.shape[1:], own["ln_1.weight"], own["ln_1.bias"])
        attended, _ = F.multi_head_attention_forward(
            normed, normed, normed, x.shape[1], heads, own["attn.in_proj_weight"], own["attn.in_proj_bias"],
            None, None, False, 0.0, own["attn.out_proj.weight"], own["attn.out_proj.bias"], attn_mask=mask,
        )  # fmt: skip
        x = x + attended
        hidden = act(
            F.layer_norm(x, x.shape[1:], own["ln_2.weight"], own["ln_2.bias"]) @ own["mlp.c_fc.weight"].T
            + own["mlp.c_fc.bias"]
        )
        x = x + hidden @ own["mlp.c_proj.weight"].T + own["mlp.c_proj.bias"]
    return x


def see(pixels: Tensor, w: dict[str, Tensor], act: Any) -> Tensor:
    patches = F.conv2d(pixels[None], w["visual.conv1.weight"], stride=8)[0].flatten(1).T
    x = torch.cat([w["visual.class_embedding"][None], patches]) + w["visual.positional_embedding"]
    x = F.layer_norm(x, (WIDTH,), w["visual.ln_pre.weight"], w["visual.ln_pre.bias"])
    x = transform(x, w, "visual.transformer.resblocks.", HEADS, act, None)
    first = F.layer_norm(x[0], (WIDTH,), w["visual.ln_post.weight"], w["visual.ln_post.bias"])
    return F.normalize(first @ w["visual.proj"], dim=0)


def read(ids: Tensor, w: dict[str, Tensor], act: Any) -> Tensor:
    x = w["token_embedding.weight"][ids] + w["positional_embedding"][: len(ids)]
    later = torch.full((len(ids), len(ids)), -torch.inf).triu(1)
    x = transform(x, w, "transformer.resblocks.", TEXT_HEADS, act, later)
    last = F.layer_norm(x, (TEXT_WIDTH,), w["ln_final.weight"], w["ln_final.bias"])[-1]
    return F.normalize(last @ w["text_projection"], dim=0)


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


@pytest.mark.parametrize(
    ("text", "options", "act"), [("", {}, F.gelu), ("text.", {"quick_gelu": True, "custom_text": True}, quick_gelu)]
)
def test_embeddings_are_those_of_its_formulas(
    text: str, options: Any, act: Any, make_photos: Any, tmp_path: Path
) -> None:
    weights = save(tmp_path / "open", text=text, **options)
    assert convert(tmp_path / "open", tmp_path / "model").repository == "clip"
    model = openvse.load(tmp_path / "model")
    paths = make_photos(2)
    pixels = model.read_images(paths).values
    for row, image in enumerate(pixels):
        torch.testing.assert_close(
            model.encode_image(paths).vectors[row, 0], see(image, weights, act), rtol=0, atol=1e-5
        )
    for caption, ids in zip(CAPTIONS, model.text.encoder.tokenize(CAPTIONS), strict=True):
        theirs = read(ids, weights, act)
        torch.testing.assert_close(model.encode_text(caption).vectors[0, 0], theirs, rtol=0, atol=1e-5)
    assert model.similarity.scale == pytest.approx(weights["logit_scale"].exp().item())


@pytest.mark.parametrize("size", [(96, 72), (60, 91), (100, 35), (35, 32), (32, 35), (32, 39), (33, 40), (101, 32)])
def test_pixels_are_resized_and_cut_as_torchvision_does(size: tuple[int, int], tmp_path: Path) -> None:
    """The shorter side becomes 32 pixels, and of the longer one the middle is kept, from ``round(rest / 2)`` on."""
    save(tmp_path / "open")
    backbone = convert(tmp_path / "open", tmp_path / "model").model.image.encoder.backbone
    image = Image.effect_noise(size, 80).convert("RGB")
    width, height = size
    resized = image.resize(
        (32, int(32 * height / width)) if width <= height else (int(32 * width / height), 32), Image.Resampling.BICUBIC
    )
    left, top = round((resized.width - 32) / 2), round((resized.height - 32) / 2)
    cut = np.asarray(resized.crop((left, top, left + 32, top + 32)), np.float32) / 255
    expected = torch.from_numpy((cut - np.float32(MEAN)) / np.float32(STD)).permute(2, 0, 1)
    torch.testing.assert_close(backbone.preprocess(image), expected, rtol=0, atol=1e-5)
    again = openvse.load(tmp_path / "model").image.encoder.backbone
    torch.testing.assert_close(again.preprocess(image), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("section", "options", "told"),
    [
        ("vision_cfg", {"timm_model_name": "vit_base_patch16_siglip_224"}, "vision_cfg.*timm_model_name"),
        ("vision_cfg", {"layers": [3, 4, 6, 3]}, "vision_cfg.*3.*4.*6.*3"),
        ("text_cfg", {"hf_model_name": "roberta-base"}, "text_cfg.*hf_model_name 'roberta-base'"),
        ("vision_cfg", {"image_size": [32, 40]}, "image_size.*32.*40"),
    ],
)
def test_other_towers_are_refused(section: str, options: Any, told: str, tmp_path: Path) -> None:
    save(tmp_path / "open", **{section: MODEL[section] | options})
    with pytest.raises(CheckpointError, match=told):
        convert(tmp_path / "open", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_tokenizer_that_is_not_among_the_files_is_named(tmp_path: Path) -> None:
    save(tmp_path / "open", text_cfg=MODEL["text_cfg"] | {"hf_tokenizer_name": "someone/words"})
    write_tokenizer("clip", tmp_path / "words")
    for path in (tmp_path / "open").glob("tokenizer*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="someone/words.*--vocabulary"):
        convert(tmp_path / "open", tmp_path / "model")
    convert(tmp_path / "open", tmp_path / "model", vocabulary=tmp_path / "words")
    assert openvse.load(tmp_path / "model").encode_text("a dog").vectors.shape == (1, 1, EMBED)


def test_sentences_are_cleaned_and_the_advised_files_are_a_tokenizer(tmp_path: Path) -> None:
    save(tmp_path / "checkpoint")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "checkpoint" / name).unlink()
    words = ["a</w>", "d", "o", "g</w>", "do", "dog</w>", '"', '"</w>', "<|startoftext|>", "<|endoftext|>"]
    for folder in (tmp_path / "checkpoint", tmp_path / "words"):
        folder.mkdir(exist_ok=True)
        (folder / "vocab.json").write_text(json.dumps({word: place for place, word in enumerate(words)}))
        (folder / "merges.txt").write_text("#version: 0.2\nd o\ndo g</w>\n")
    beside = convert(str(tmp_path / "checkpoint"), tmp_path / "beside").model
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / "checkpoint" / name).unlink()
    named = convert(str(tmp_path / "checkpoint"), tmp_path / "named", vocabulary=str(tmp_path / "words")).model
    for model in (beside, named, openvse.load(tmp_path / "beside")):
        (plain, curly) = (
            ids.tolist() for ids in model.text.encoder.tokenize(['a "dog"', "A\u3000\u201c\uff24og\u201d"])
        )
        assert plain == curly and plain[0] == words.index("<|startoftext|>") and words.index("dog</w>") in plain
