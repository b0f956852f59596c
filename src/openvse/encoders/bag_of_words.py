"""Word embeddings without context, the text side of DeViSE and of correspondence autoencoders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from openvse.encoders.augmentations import TokenMode
from openvse.encoders.words_encoder import MAX_WORDS, WordsEncoder
from openvse.registry import Maker
from openvse.tokenization.word_splitters import WordSplitter, WordsSplitter
from openvse.types import Features, Inputs


class BagOfWords(WordsEncoder):
    """The embeddings of the words of a caption, which know nothing of each other.

    With fixed word vectors and the aggregator ``mean`` this is the text side of DeViSE (Frome et al., NIPS 2013):
    the joint space is that of the word vectors, so that ``embed_dim`` is their width.

    Options are those of ``bigru``; there are no boundaries, and word embeddings are kept by default.

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
