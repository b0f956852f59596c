"""How much of its sentences a text encoder knows, and which words it does not know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_NAMED = 20


@dataclass(frozen=True)
class UnknownWord:
    """A word of a sentence that a text encoder has not learned.

    Attributes:
        word: the word, as the encoder splits it off.
        read_as: the known word that is read instead; None if there is none.
    """

    word: str
    read_as: str | None = None


@dataclass(frozen=True)
class Coverage:
    """How much of many sentences a text encoder knows.

    Attributes:
        num_tokens: the number of words, or pieces of words, in all sentences.
        num_unknown: the number of these tokens that the encoder does not know.
        num_words: the number of different words; None for an encoder that cuts words into pieces.
        num_known: the number of different words that have their own embedding.
        min_count: how often a word must occur in the training sentences to have its own embedding.
        num_sentences: the number of sentences that were counted.
        num_cut: the number of sentences that are longer than ``limit``.
        limit: how many words of a sentence are read.
    """

    num_tokens: int
    num_unknown: int
    num_words: int | None = None
    num_known: int = 0
    min_count: int = 1
    num_sentences: int = 0
    num_cut: int = 0
    limit: str = ""

    def describe(self, sentences: str = "caption") -> str:
        """Return one line for a terminal.

        Args:
            sentences: what one sentence is called.

        Example:
            >>> Coverage(1000, 113, 939, 279, 2).describe()
            'vocabulary: 279 of 939 words kept (min_count 2); 11.3 % of the caption tokens are unknown words'
        """
        cut = f"; {self.num_cut:,} of {self.num_sentences:,} {sentences}s are cut at {self.limit}"
        return self._known(sentences) + cut * bool(self.num_cut)

    def _known(self, sentences: str) -> str:
        share = (
            f"{100 * self.num_unknown / max(self.num_tokens, 1):.1f} % of the {sentences} tokens are unknown"
        )
        if self.num_words is None:
            return (
                f"tokenizer: {share}" if self.num_unknown else f"tokenizer: every {sentences} token is known"
            )
        if self.num_known == self.num_words:
            return f"vocabulary: all {self.num_words:,} words kept (min_count {self.min_count})"
        kept = f"{self.num_known:,} of {self.num_words:,} words kept (min_count {self.min_count})"
        return f"vocabulary: {kept}; {share} words"


def unknown_line(words: Iterable[UnknownWord]) -> str:
    """Return a line that names unknown words, each once; "" if there are none.

    Example:
        >>> unknown_line([UnknownWord("elefant", "elephant"), UnknownWord("zebra"), UnknownWord("zebra")])
        "the model does not know the words 'elefant' (read as 'elephant'), 'zebra'"
    """
    named = [
        repr(unknown.word) + (f" (read as {unknown.read_as!r})" if unknown.read_as else "")
        for unknown in dict.fromkeys(words)
    ]
    if not named:
        return ""
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return f"the model does not know the word{'s' * (len(named) > 1)} {', '.join(named[:_NAMED])}{more}"
