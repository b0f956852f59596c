"""Pretrained word vectors in the text format of GloVe, word2vec and fastText."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from openvse.errors import DataError


def read_word_vectors(path: Path, *, wanted: Container[str], dim: int) -> dict[str, Float[Tensor, "L"]]:
    """Read the vectors of the wanted words, line by line: memory holds those alone.

    A line is ``word v1 .. vn``; a first line of two integers (word2vec, fastText) is skipped. The first
    vector of a word counts.

    Args:
        path: the file, in UTF-8.
        wanted: the words to keep.
        dim: width of a vector.

    Raises:
        DataError: the file cannot be read, is no such file, or has vectors of another width.
    """
    vectors: dict[str, Tensor] = {}
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                word, _, rest = line.rstrip().partition(" ")
                header = number == 1 and word.isdigit() and rest.isdigit()
                if not header and (number == 1 or (word in wanted and word not in vectors)):
                    vectors[word] = _parse(rest, dim, f"{path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"word vectors {path} cannot be read ({error}): give a GloVe text file") from error
    return {word: vector for word, vector in vectors.items() if word in wanted}


def _parse(text: str, dim: int, place: str) -> Float[Tensor, "L"]:
    fields = text.split()
    try:
        vector = torch.tensor([float(field) for field in fields])
    except ValueError as error:
        raise DataError(f"{place} is not 'word v1 v2 ..' ({error}): give a GloVe text file") from error
    if len(vector) != dim:
        raise DataError(f"{place} has {len(vector)} numbers, word_dim is {dim}: set word_dim={len(vector)}")
    return vector
