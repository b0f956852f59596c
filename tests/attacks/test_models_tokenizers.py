"""A tokenizer beside somebody else's index: whatever its file is, a sentence ends in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from openvse.errors import ModelError
from openvse.runtime.model import read_tokenizer

READING = {"kind": "pieces", "file": "tokenizer.json", "max_length": 16, "unknown": 0, "cut": "right"}


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(ModelError, match=str(tmp_path)):
        read_tokenizer(tmp_path, READING)


def test_a_pattern_that_never_ends_is_one_line(tmp_path: Path) -> None:
    made = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    made.normalizer = normalizers.Replace(Regex("(a+)+(b+)+$"), "")
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_tokenizer(tmp_path, READING)
    assert tokenizer.tokenize(["a dog"]) == [[0, 0]]
    with pytest.raises(ModelError, match="tokenizer"):
        tokenizer.tokenize(["a" * 60 + "b" * 60 + "!"])
