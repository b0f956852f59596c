"""Tiny checkpoints with random weights, saved as ``transformers`` saves real ones."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIALS, "a", "dog", "cat", "runs", "sits", "on", "the", "mat", "red", "##s", "two"]


def _vision_config(family: str):
    from transformers import (
        CLIPVisionConfig,
        ConvNextConfig,
        Dinov2Config,
        ResNetConfig,
        SiglipVisionConfig,
        SwinConfig,
        ViTConfig,
    )

    transformer = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    patches = {"intermediate_size": 32, "image_size": 32, "patch_size": 8}
    stages = {"hidden_sizes": [8, 8, 12, 16], "depths": [1, 1, 1, 1]}
    makers = {
        "vit": lambda: ViTConfig(**transformer, **patches),
        "clip_vision": lambda: CLIPVisionConfig(**transformer, **patches),
        "siglip_vision": lambda: SiglipVisionConfig(**transformer, **patches),
        "swin": lambda: SwinConfig(embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4, image_size=32),
        "dinov2": lambda: Dinov2Config(**transformer, image_size=28, patch_size=7),
        "resnet": lambda: ResNetConfig(embedding_size=8, **stages),
        "convnext": lambda: ConvNextConfig(**stages),
    }
    return makers[family]()


PREPROCESSING = {
    "vit": {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}},
    "swin": {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}},
    "siglip_vision": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 32, "width": 32}},
    "clip_vision": {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 32},
        "crop_size": {"height": 32, "width": 32},
        "do_center_crop": True,
    },
    "dinov2": {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": 32},
        "crop_size": {"height": 28, "width": 28},
        "do_center_crop": True,
    },
    "resnet": {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 64}, "crop_pct": 0.875},
    "convnext": {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 64}, "crop_pct": 0.875},
}
NORMALISATION = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.25, 0.5],
    "resample": 3,
}


@pytest.fixture(scope="session")
def vision_checkpoint(tmp_path_factory) -> Callable[[str], str]:
    """Return a maker of vision checkpoints by family; each is made once."""
    root = tmp_path_factory.mktemp("vision")

    def make(family: str) -> str:
        from transformers import AutoModel

        folder = root / family
        if not folder.exists():
            torch.manual_seed(0)
            AutoModel.from_config(_vision_config(family)).save_pretrained(folder)
            preprocessing = PREPROCESSING[family] | NORMALISATION
            (folder / "preprocessor_config.json").write_text(json.dumps(preprocessing))
        return str(folder)

    return make


@pytest.fixture(scope="session")
def bert_checkpoint(tmp_path_factory) -> str:
    """Return a BERT of two small layers with a word-piece tokenizer."""
    from transformers import BertConfig, BertModel

    folder: Path = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return str(folder)


def _clip_tokenizer(folder: Path) -> None:
    """Write CLIP's own files: pieces with a mark at the end of a word, and the merges that make them."""
    letters = [*"abcdefghijklmnopqrstuvwxyz"]
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "do", "dog</w>"]
    vocabulary = [*pieces, "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({piece: index for index, piece in enumerate(vocabulary)}))
    (folder / "merges.txt").write_text("#version: 0.2\nd o\ndo g</w>\n")
    ends = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    tokenizer = {"tokenizer_class": "CLIPTokenizer", "unk_token": "<|endoftext|>", "model_max_length": 16}
    (folder / "tokenizer_config.json").write_text(json.dumps(ends | tokenizer))


def _siglip_tokenizer(folder: Path) -> None:
    """Write a tokenizer that ends a caption as SigLIP's does, and pads it with the same token."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {word: index for index, word in enumerate(["<unk>", "</s>", *WORDS])}
    words = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", eos_token="</s>", pad_token="</s>"
    ).save_pretrained(folder)


@pytest.fixture(scope="session")
def two_tower_checkpoint(tmp_path_factory) -> Callable[[str], str]:
    """Return a maker of whole checkpoints, ``clip`` or ``siglip``: both towers, preprocessing, tokenizer."""
    root = tmp_path_factory.mktemp("two_towers")
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "hidden_size": 16}
    text = layers | {"max_position_embeddings": 16, "vocab_size": 64}
    vision = layers | {"image_size": 32, "patch_size": 8}

    def make(family: str) -> str:
        from transformers import CLIPConfig, CLIPModel, SiglipConfig, SiglipModel

        folder = root / family
        if folder.exists():
            return str(folder)
        torch.manual_seed(0)
        if family == "clip":
            ends = {"bos_token_id": 54, "eos_token_id": 55, "pad_token_id": 55}
            config = CLIPConfig(text_config=text | ends, vision_config=vision, projection_dim=8)
            CLIPModel(config).save_pretrained(folder)
            _clip_tokenizer(folder)
        else:
            ends = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 1}
            SiglipModel(SiglipConfig(text_config=text | ends, vision_config=vision)).save_pretrained(folder)
            _siglip_tokenizer(folder)
        preprocessing = PREPROCESSING[f"{family}_vision"] | NORMALISATION
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessing))
        return str(folder)

    return make
