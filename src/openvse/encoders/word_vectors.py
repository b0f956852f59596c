"""Pretrained word vectors in the text format of GloVe, word2vec and fastText."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Container
from io import TextIOWrapper
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from openvse.errors import DataError

GZIP = b"\x1f\x8b"


def read_word_vectors(path: Path, *, wanted: Container[str], dim: int) -> dict[str, Float[Tensor, "L"]]:
    """Read the vectors of the wanted words, line by line, so that memory holds only these.

    A line is ``word v1 .. vn``. The first line of word2vec and fastText holds two integers, the number of words and
    the width. If a word occurs twice, its first vector counts.

    Args:
        path: the file, in UTF-8, plain or compressed by gzip (``cc.en.300.vec.gz``).
        wanted: the words to keep.
        dim: the width of a vector.

    Raises:
        DataError: the file cannot be read, does not have this format, or has vectors of another width.
    """
    vectors: dict[str, Tensor] = {}
    try:
        with _opened(path) as lines:
            for number, line in enumerate(lines, start=1):
                word, _, rest = line.rstrip().partition(" ")
                if number == 1 and word.isdigit() and rest.isdigit():
                    _check_width(int(rest), dim, f"{path}: each vector")
                elif number == 1 or (word in wanted and word not in vectors):
                    vectors[word] = _parse(rest, dim, f"{path}, line {number}")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(
            f"word vectors {path} cannot be read ({error}): give a text file of GloVe or fastText (.txt, .vec), or "
            f"its .gz; unpack a .zip; a .bin is not a text file"
        ) from error
    return {word: vector for word, vector in vectors.items() if word in wanted}


def _opened(path: Path) -> TextIOWrapper:
    with path.open("rb") as file:
        packed = file.read(len(GZIP)) == GZIP
    return gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8")


def _check_width(width: int, dim: int, place: str) -> None:
    if width != dim:
        raise DataError(f"{place} has {width} numbers, word_dim is {dim}: set word_dim={width}")


def _parse(text: str, dim: int, place: str) -> Float[Tensor, "L"]:
    fields = text.split()
    try:
        vector = torch.tensor([float(field) for field in fields])
    except ValueError as error:
        raise DataError(
            f"{place} is not 'word v1 v2 ..' ({error}): give a text file of GloVe or fastText"
        ) from error
    _check_width(len(vector), dim, place)
    return vector
