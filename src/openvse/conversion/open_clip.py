"""OpenCLIP's own files (``open_clip_config.json`` and weights), converted to the form of ``transformers``.

A vision transformer with a class token and the standard text transformer are converted: CLIP under other names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openvse.backbones.pretrained import load_or_explain, load_tokenizer
from openvse.conversion.weights import Names, Weights, renamed, shape
from openvse.errors import CheckpointError, ModelError

CLIP_TOKENIZER = "openai/clip-vit-base-patch32"  # the tokenizer of every model without its own
TOKENIZER_FILES = ("tokenizer.json", "vocab.json")
RESAMPLING = {"bicubic": 3, "bilinear": 2, "nearest": 0}  # Pillow's numbers
_MEAN, _STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
_TEXT = "text."  # the beginning of names in a separate text tower (custom_text)

# The keys that a configuration may have. Other keys must have the values in _USUAL, or none.
_READ: Mapping[str, frozenset[str]] = {
    "model_cfg": frozenset({"embed_dim", "vision_cfg", "text_cfg", "quick_gelu", "custom_text"})
    | {"init_logit_scale", "init_logit_bias"},
    "vision_cfg": frozenset({"image_size", "layers", "width", "head_width", "mlp_ratio", "patch_size"})
    | {"patch_dropout", "output_tokens"},
    "text_cfg": frozenset({"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"})
    | {"hf_tokenizer_name", "output_tokens"},
}
_USUAL: Mapping[str, Any] = {"pool_type": ("tok", "argmax"), "pos_embed_type": ("learnable",)}

_OUTSIDE: Names = {
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.conv1.": "vision_model.embeddings.patch_embedding.",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.ln_pre.": "vision_model.pre_layrnorm.",
    "visual.ln_post.": "vision_model.post_layernorm.",
    "visual.transformer.resblocks.": "vision_model.encoder.layers.",
    "visual.proj": "visual_projection.weight",
    "token_embedding.": "text_model.embeddings.token_embedding.",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "transformer.resblocks.": "text_model.encoder.layers.",
    "ln_final.": "text_model.final_layer_norm.",
    "text_projection": "text_projection.weight",
    "logit_scale": "logit_scale",
    "attn_mask": None,  # the causal mask
}
_INSIDE: Names = {
    "ln_1.": "layer_norm1.",
    "ln_2.": "layer_norm2.",
    "attn.out_proj.": "self_attn.out_proj.",
    "attn.in_proj_": "self_attn.qkv_proj.",
    "mlp.c_fc.": "mlp.fc1.",
    "mlp.c_proj.": "mlp.fc2.",
}


def open_clip_files(
    config: Mapping[str, Any], weights: Weights, source: Path, folder: Path, tokenizer: str | None
) -> tuple[Path, Weights]:
    """Write the files that ``transformers`` reads, and return their folder and the weights by its names.

    Without a tokenizer (a folder or hub id), the one in ``source`` is used, or CLIP's.
    """
    model = _section(config, "model_cfg")
    vision, text = _section(model, "vision_cfg"), _section(model, "text_cfg")
    for name, section in {"model_cfg": model, "vision_cfg": vision, "text_cfg": text}.items():
        _expect_mapped(name, section)
    ours = _by_their_names(weights)
    folder.mkdir(parents=True)
    described = _config(model, vision, text, ours)
    preprocessing = _preprocessing(
        config.get("preprocess_cfg") or {}, described["vision_config"]["image_size"]
    )
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessing))
    if tokenizer is None:
        own = any((source / name).is_file() for name in TOKENIZER_FILES)
        if not own and text.get("hf_tokenizer_name"):
            raise CheckpointError(
                f"it reads words with the tokenizer of {text['hf_tokenizer_name']}, which is not among its files: give "
                f"its folder or hub id with --vocabulary"
            )
        _copy_tokenizer(str(source) if own else CLIP_TOKENIZER, folder)
    return folder, ours


def _section(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = tree.get(name)
    if not isinstance(section, Mapping):
        raise CheckpointError(f"its open_clip_config.json has no {name}: download it again")
    return section


def _expect_mapped(name: str, section: Mapping[str, Any]) -> None:
    """Raise CheckpointError for an option whose network cannot be converted."""
    for key, value in section.items():
        usual = not value or value in _USUAL.get(key, ())
        if key not in _READ[name] and not usual:
            raise CheckpointError(
                f"its {name} has {key} {value!r}, but only OpenCLIP's plain vision transformer and standard text "
                f"transformer are converted: take a copy in the format of transformers, if there is one"
            )
    if name != "model_cfg" and not isinstance(section.get("layers"), int):
        raise CheckpointError(
            f"its {name} has layers {section.get('layers')!r}, so it is not a transformer, and cannot be converted: "
            f"take a model with two transformers"
        )


def _by_their_names(weights: Weights) -> Weights:
    """Return the weights by the names of ``transformers``, which has separate weights for queries, keys and values."""
    flat = {n.removeprefix(_TEXT): w for n, w in weights.items()}
    result: Weights = {}
    for outside, weight in renamed(flat, _OUTSIDE).items():
        name = outside
        begin, layers, rest = name.partition(".encoder.layers.")
        if layers:
            number, _, inside = rest.partition(".")
            (last,) = renamed({inside: weight}, _INSIDE)
            name = f"{begin}{layers}{number}.{last}"
        parts = zip("qkv", weight.chunk(3), strict=True) if ".qkv_proj." in name else [("qkv", weight)]
        for which, part in parts:
            result[name.replace(".qkv_", f".{which}_")] = part
    for name in ("visual_projection.weight", "text_projection.weight"):
        result |= {name: result[name].T} if name in result else {}
    return result


def _config(
    model: Mapping[str, Any], vision: Mapping[str, Any], text: Mapping[str, Any], weights: Weights
) -> dict[str, Any]:
    """Return the configuration as ``transformers`` writes it, with sizes from the shapes of the weights."""
    width, _, patch, _ = shape(weights, "vision_model.embeddings.patch_embedding.weight", axes=4)
    words, text_width = shape(weights, "text_model.embeddings.token_embedding.weight", axes=2)
    positions = shape(weights, "text_model.embeddings.position_embedding.weight", axes=2)[0]
    hidden = shape(weights, "vision_model.encoder.layers.0.mlp.fc1.weight", axes=2)[0]
    text_hidden = shape(weights, "text_model.encoder.layers.0.mlp.fc1.weight", axes=2)[0]
    act = "quick_gelu" if model.get("quick_gelu") else "gelu"
    return {
        "model_type": "clip",
        "projection_dim": shape(weights, "visual_projection.weight", axes=2)[0],
        "vision_config": {
            "hidden_size": width,
            "intermediate_size": hidden,
            "num_hidden_layers": vision["layers"],
            "num_attention_heads": width // int(vision.get("head_width", 64)),
            "image_size": _side(vision.get("image_size", 224)),
            "patch_size": patch,
            "hidden_act": act,
        },
        "text_config": {
            "hidden_size": text_width,
            "intermediate_size": text_hidden,
            "num_hidden_layers": text["layers"],
            "num_attention_heads": int(text.get("heads", 8)),
            "max_position_embeddings": positions,
            "vocab_size": words,
            "hidden_act": act,
        },
    }


def _side(size: Any) -> int:
    if isinstance(size, int):
        return size
    if isinstance(size, list | tuple) and len(set(size)) == 1:
        return int(size[0])
    raise CheckpointError(
        f"its images are not square (image_size {size}), so it cannot be converted: take a "
        f"model with square images"
    )


def _preprocessing(options: Mapping[str, Any], side: int) -> dict[str, Any]:
    """Return OpenCLIP's preprocessing of validation as ``transformers`` describes it."""
    mode, interpolation = options.get("resize_mode", "shortest"), options.get("interpolation", "bicubic")
    if mode not in ("shortest", "squash") or interpolation not in RESAMPLING:
        raise CheckpointError(
            f"its preprocessing resizes images by {mode!r} and {interpolation!r}: only shortest and squash can be "
            f"converted, with {', '.join(RESAMPLING)}"
        )
    square = {"height": side, "width": side}
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": side} if mode == "shortest" else square,
        "do_center_crop": mode == "shortest",
        "crop_size": square,
        "resample": RESAMPLING[interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(options.get("mean") or _MEAN),
        "image_std": list(options.get("std") or _STD),
        "do_convert_rgb": True,
    }


def load_clip_tokenizer(source: str) -> Any:
    """Return CLIP's tokenizer. Raise ModelError if the folder holds none that can be loaded."""
    from transformers import CLIPTokenizer

    there = {path.name for path in Path(source).iterdir()} if Path(source).is_dir() else set()
    if {"vocab.json", "merges.txt"} <= there and not {"tokenizer.json", "tokenizer_config.json"} & there:
        return load_or_explain(CLIPTokenizer.from_pretrained, source, what="the tokenizer")
    return load_tokenizer(source)


def _copy_tokenizer(source: str, folder: Path) -> None:
    try:
        load_clip_tokenizer(source).save_pretrained(folder)
    except ModelError as error:
        raise CheckpointError(
            f"its tokenizer cannot be loaded ({error}): put vocab.json and merges.txt of CLIP's tokenizer next to its "
            f"weights, or give a folder with them with --vocabulary"
        ) from error
