"""Tokenizers of exported models: a vocabulary of words, or a file of the ``tokenizers`` library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from openvse.encoders.vocabulary import UnknownWord, Vocabulary
from openvse.encoders.word_splitters import WORD_SPLITTERS
from openvse.errors import ModelError


@runtime_checkable
class RuntimeTokenizer(Protocol):
    """Turns sentences into token ids."""

    def tokenize(self, captions: Sequence[str]) -> list[list[int]]:
        """Return the ids of each sentence, at least one."""
        ...

    def unknown_words(self, caption: str) -> list[UnknownWord]:
        """Return the words of a sentence that the model has not learned, each once."""
        ...


class VocabularyTokenizer:
    """Splits a sentence into words and looks them up.

    Args:
        folder: the folder of the vocabulary.
        file: its name.
        splitter: a name in ``WORD_SPLITTERS``.
        boundaries: whether a start and an end token are added.
        max_words: the number of words that are read; None reads all.
        nearest: whether an unknown word is read as the known one with the nearest spelling.
    """

    def __init__(
        self,
        folder: Path,
        *,
        file: str,
        splitter: str,
        boundaries: bool,
        max_words: int | None,
        nearest: bool,
    ) -> None:
        split = WORD_SPLITTERS.get(splitter)()
        self._vocabulary = Vocabulary.load(folder / file, split=split, nearest=nearest)
        self._boundaries, self._max_words = boundaries, max_words

    def tokenize(self, captions: Sequence[str]) -> list[list[int]]:
        """Return the ids of the words of each sentence."""
        return [
            self._vocabulary.ids(caption, boundaries=self._boundaries, max_words=self._max_words)
            for caption in captions
        ]

    def unknown_words(self, caption: str) -> list[UnknownWord]:
        """Return the words of a sentence that are read and not in the vocabulary."""
        known = self._vocabulary
        words = dict.fromkeys(known.split(caption)[: self._max_words])
        return [UnknownWord(word, known.nearest(word)) for word in words if word not in known]


class PieceTokenizer:
    """Cuts a sentence into word pieces, as the tokenizer of a pretrained text model does.

    Args:
        folder: the folder of the tokenizer.
        file: the name of its file, in the format of the ``tokenizers`` library.
        max_length: the number of tokens that are read, special ones included.
        unknown: the id of a piece that the tokenizer lacks; None if it has none.
        cut: the side at which a longer sentence is cut.
    """

    def __init__(self, folder: Path, *, file: str, max_length: int, unknown: int | None, cut: str) -> None:
        try:
            from tokenizers import Tokenizer

            self._pieces = Tokenizer.from_file(str(folder / file))
        except ImportError as error:
            raise ModelError("this model needs the tokenizers library: pip install tokenizers") from error
        except Exception as error:  # the library raises the base class
            raise ModelError(f"{folder / file} cannot be read ({error}): export the model again") from error
        self._pieces.no_padding()
        self._pieces.enable_truncation(max_length, direction=cut)
        self._words = Tokenizer.from_file(str(folder / file))
        self._words.no_padding()
        self._words.no_truncation()
        self._unknown = unknown

    def tokenize(self, captions: Sequence[str]) -> list[list[int]]:
        """Return the ids of the pieces of each sentence, special tokens included."""
        encoded = self._pieces.encode_batch(list(captions))
        return [list(each.ids) or [self._unknown or 0] for each in encoded]

    def unknown_words(self, caption: str) -> list[UnknownWord]:
        """Return the words of a sentence, separated at white space, that have a piece which the tokenizer lacks."""
        words = list(dict.fromkeys(caption.split()))
        if self._unknown is None or not words:
            return []
        encoded = self._words.encode_batch(words, add_special_tokens=False)
        return [
            UnknownWord(word) for word, each in zip(words, encoded, strict=True) if self._unknown in each.ids
        ]


def read_tokenizer(folder: Path, reading: Mapping[str, Any]) -> RuntimeTokenizer:
    """Return the tokenizer that an export describes.

    Raises:
        ModelError: its files are missing or damaged, or it is of a kind that this openvse does not know.
    """
    kinds = {"vocabulary": VocabularyTokenizer, "pieces": PieceTokenizer}
    options = dict(reading)
    kind = kinds.get(str(options.pop("kind", "")))
    if kind is None:
        raise ModelError(
            f"the export has a tokenizer of the kind {reading.get('kind')!r}, this openvse knows "
            f"{', '.join(kinds)}: update openvse, or export the model again"
        )
    try:
        made: RuntimeTokenizer = kind(folder, **options)
    except TypeError as error:
        raise ModelError(f"the tokenizer of the export is damaged ({error}): export again") from error
    return made
