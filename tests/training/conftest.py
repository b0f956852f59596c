"""The tiny data set, a text model that knows its words, and dual encoders to start from."""

import json
from pathlib import Path

import pytest
import torch

from encoders.conftest import SPECIALS
from tests.tiny import WORDS, write_tiny_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_corpus(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a tiny BERT that knows the words of the tiny data set."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "hidden_size": 16}
    vocabulary = [*SPECIALS, *WORDS]
    BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=32, **layers)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return str(folder)
