"""Small dual encoders with random weights, saved as ``transformers`` saves published ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
VISION = LAYERS | {"image_size": 32, "patch_size": 8}
WORDS = ("a", "dog", "cat", "runs", "sits", "on", "the", "mat", "red", "two", "狗", "猫")
CAPTIONS = ("a dog", "two cat sits on the red mat", "dog", "a zebra runs")
FAMILIES = ("clip", "siglip", "altclip", "chinese_clip", "align", "metaclip_2")
CROPPED = {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}, "do_center_crop": True}
SQUARE = {"size": {"height": 32, "width": 32}}
PREPROCESSING = {
    "clip": {"image_processor_type": "CLIPImageProcessor", "resample": 3} | CROPPED,
    "siglip": {"image_processor_type": "SiglipImageProcessor", "resample": 2} | SQUARE,
    "altclip": {"image_processor_type": "CLIPImageProcessor", "resample": 3} | CROPPED,
    "chinese_clip": {"image_processor_type": "ChineseCLIPImageProcessor", "resample": 3} | CROPPED,
    "align": {
        "image_processor_type": "EfficientNetImageProcessor",
        "size": {"height": 40, "width": 40},
        "crop_size": {"height": 36, "width": 36},
        "do_center_crop": True,
        "include_top": False,
        "resample": 2,
    },
    "metaclip_2": {"image_processor_type": "CLIPImageProcessor", "resample": 3} | CROPPED,
}
NORMALISATION = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.5]}


def save_dual(family: str, folder: Path, *, half: bool = False, safe: bool = True, shards: bool = False) -> Path:
    """Write a checkpoint with all that the hub has of one.

    Args:
        family: a name of ``FAMILIES``.
        folder: to write to.
        half: weights in half precision.
        safe: safetensors; otherwise what ``torch.save`` writes.
        shards: several files of weights.
    """
    torch.manual_seed(7)
    model = make_model(family)
    with torch.no_grad():  # norms and biases that start at 1 and 0 would hide a weight in the wrong place
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    model = model.half() if half else model
    model.save_pretrained(folder, **({"max_shard_size": "20KB"} if shards else {}))
    if not safe:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSING[family] | NORMALISATION))
    write_tokenizer(family, folder)
    return folder


def make_model(family: str) -> Any:
    """Return a whole model with random weights."""
    import transformers as hf

    positions = {"max_position_embeddings": 16, "vocab_size": 64}
    bert = LAYERS | {"max_position_embeddings": 24, "vocab_size": len(WORDS) + 4, "pad_token_id": 0}
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    makers = {
        "clip": lambda: hf.CLIPModel(
            hf.CLIPConfig(text_config=LAYERS | positions | ends, vision_config=VISION, projection_dim=12)
        ),
        "siglip": lambda: hf.SiglipModel(
            hf.SiglipConfig(
                text_config=LAYERS | positions | {"projection_size": 24, "hidden_size": 16},
                vision_config=VISION | {"hidden_size": 24, "num_attention_heads": 3},
            )
        ),
        "altclip": lambda: hf.AltCLIPModel(
            hf.AltCLIPConfig(
                text_config=bert | {"project_dim": 20, "pad_token_id": 1}, vision_config=VISION, projection_dim=12
            )
        ),
        "chinese_clip": lambda: hf.ChineseCLIPModel(
            hf.ChineseCLIPConfig(text_config=bert, vision_config=VISION, projection_dim=12)
        ),
        "align": lambda: hf.AlignModel(
            hf.AlignConfig(text_config=bert, vision_config=_efficientnet(), projection_dim=16)
        ),
        "metaclip_2": lambda: hf.MetaClip2Model(
            hf.MetaClip2Config(text_config=LAYERS | positions | ends, vision_config=VISION, projection_dim=12)
        ),
    }
    return makers[family]().eval()


def _efficientnet() -> dict[str, Any]:
    stages = {"in_channels": [32, 8], "out_channels": [8, 16], "kernel_sizes": [3, 3], "strides": [2, 2]}
    blocks = {"num_block_repeats": [1, 1], "expand_ratios": [1, 2], "depthwise_padding": []}
    return stages | blocks | {"hidden_dim": 16, "image_size": 36, "width_coefficient": 1.0, "depth_coefficient": 1.0}


def write_tokenizer(family: str, folder: Path, *, extra: int = 0) -> None:
    """Write a tokenizer of whole words between the special tokens that the family puts around a caption."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    specials = {
        "clip": ["<s>", "</s>", "<unk>"],
        "siglip": ["<unk>", "</s>"],
        "metaclip_2": ["<s>", "</s>", "<unk>"],
        "altclip": ["<s>", "<pad>", "</s>", "<unk>"],
    }.get(family, ["[PAD]", "[CLS]", "[SEP]", "[UNK]"])
    ids = {word: index for index, word in enumerate([*specials, *WORDS, *map(str, range(extra))])}
    unknown = next(word for word in ids if word.lower() in ("<unk>", "[unk]"))
    words = Tokenizer(models.WordLevel(ids, unk_token=unknown))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    first, last = ("[CLS]", "[SEP]") if "[CLS]" in ids else ("<s>", "</s>")
    around = f"$A {last}" if family == "siglip" else f"{first} $A {last}"
    used = [(word, ids[word]) for word in (first, last) if word in around]
    words.post_processor = processors.TemplateProcessing(single=around, special_tokens=used)
    padding = next((word for word in ids if word.lower() in ("<pad>", "[pad]")), "</s>")
    named = {"unk_token": unknown, "eos_token": last, "pad_token": padding}
    names = ["input_ids"] if family == "siglip" else ["input_ids", "attention_mask"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, model_max_length=16, model_input_names=names, padding_side="right", **named
    )
    tokenizer.save_pretrained(folder)
