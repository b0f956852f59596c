"""Tiny checkpoints with random weights, saved as ``transformers`` saves real ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIALS, "a", "dog", "cat", "runs", "sits", "on", "the", "mat", "red", "##s", "two"]


def _vision_config(family: str):
    from transformers import ConvNextConfig, Dinov2Config, ResNetConfig, ViTConfig

    transformer = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    stages = {"hidden_sizes": [8, 8, 12, 16], "depths": [1, 1, 1, 1]}
    makers = {
        "vit": lambda: ViTConfig(**transformer, intermediate_size=32, image_size=32, patch_size=8),
        "dinov2": lambda: Dinov2Config(**transformer, image_size=28, patch_size=7),
        "resnet": lambda: ResNetConfig(embedding_size=8, **stages),
        "convnext": lambda: ConvNextConfig(**stages),
    }
    return makers[family]()


PREPROCESSING = {
    "vit": {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}},
    "dinov2": {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": 32},
        "crop_size": {"height": 28, "width": 28},
        "do_center_crop": True,
    },
    "resnet": {
        "image_processor_type": "ConvNextImageProcessor",
        "size": {"shortest_edge": 64},
        "crop_pct": 0.875,
    },
    "convnext": {
        "image_processor_type": "ConvNextImageProcessor",
        "size": {"shortest_edge": 64},
        "crop_pct": 0.875,
    },
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
