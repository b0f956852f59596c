"""The vocabulary: the words of the training captions with their ids, unknown words, and likely spellings.

Also sentences for a pretrained tokenizer: their cleaning, as in the model's training, and the words that it lacks. A
tokenizer of word pieces does not know a word with a missing piece, or one that it spells out.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

from openvse.errors import DataError, ModelError, importing
from openvse.files import read_json, whole_characters, write_whole
from openvse.registry import Configured, Registry

Splitter: TypeAlias = Callable[[str], list[str]]

_WORD = re.compile(r"[^\W_]+")
# Abbreviations in NLTK's English model that occur in captions: their period does not end a sentence.
_TITLES = ("mr", "mrs", "ms", "dr", "prof", "st", "jr", "sr", "lt", "col", "gen", "vs")
_INITIALS = ("u.s", "u.k", "d.c", "n.y", "l.a", "a.m", "p.m")


def split_words(caption: str) -> list[str]:
    """Return the lower-case words of a caption: runs of letters and digits of any script. All else separates words.

    Examples:
        >>> split_words("A man's 2 T-shirts.")
        ['a', 'man', 's', '2', 't', 'shirts']
    """
    return _WORD.findall(caption.lower())


class WordSplitter(Configured, ABC):
    """Splits a caption into lower-case words."""

    @abstractmethod
    def __call__(self, caption: str) -> list[str]:
        """Return the words of a caption, in their order."""


class WordsSplitter(WordSplitter):
    """Splits a caption with ``split_words``."""

    def __call__(self, caption: str) -> list[str]:
        """Return the runs of letters and digits."""
        return split_words(caption)


class NLTKSplitter(WordSplitter):
    """Splits a caption with NLTK's ``word_tokenize``, the tokenizer of VSE++, PVSE and VSE-infinity.

    Punctuation is a token, and "man's" becomes "man", "'s".

    Deviation: NLTK finds sentences with a trained model, which is a separate download. Here its algorithm runs with a
    short list of abbreviations instead, so that a model gives the same tokens on every machine. Only a period inside a
    caption, after a rare abbreviation, can be read differently.
    ModelError: NLTK is not installed.
    """

    def __init__(self) -> None:
        with importing("tokenizer 'nltk' needs NLTK", "nltk", ModelError):
            from nltk.tokenize import NLTKWordTokenizer
            from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer
        known = PunktParameters()
        known.abbrev_types = {*_TITLES, *_INITIALS}
        self._sentences, self._words = PunktSentenceTokenizer(known), NLTKWordTokenizer()

    def __call__(self, caption: str) -> list[str]:
        sentences = self._sentences.tokenize(caption.lower())
        return [word for sentence in sentences for word in self._words.tokenize(sentence)]


WORD_SPLITTERS: Registry[WordSplitter] = Registry("word splitter", {"nltk": NLTKSplitter, "words": WordsSplitter})


PAD, UNKNOWN, MASK, START, END = range(5)
SPECIALS = ("<pad>", "<unk>", "<mask>", "<start>", "<end>")
_NAMED = 20  # the number of unknown words that a line names


class Vocabulary:
    """Words with their ids: five special tokens first, then the words in their order.

    It is built only from the training captions, as a word of test captions alone would have an untrained embedding.

    Args:
        words: the words that have their own id.
        split: a function that turns a caption into words.
        nearest: whether to read an unknown word as the known one with the nearest spelling, if one is near.

    Examples:
        >>> vocabulary = Vocabulary.from_captions(["a dog", "a cat"], min_count=2)
        >>> vocabulary.ids("A bird")
        [5, 1]
    """

    def __init__(self, words: Sequence[str], *, split: Splitter = split_words, nearest: bool = False) -> None:
        self.words = tuple(words)
        self.split = split
        self._spellings = Spellings(words) if nearest else None
        self._ids = {word: index for index, word in enumerate((*SPECIALS, *words))}

    @classmethod
    def from_captions(
        cls, captions: Iterable[str], *, min_count: int = 1, split: Splitter = split_words, nearest: bool = False
    ) -> Vocabulary:
        """Build a vocabulary from the training captions, the most frequent words first, ties in alphabetical order.

        Words that occur fewer than ``min_count`` times are left out. Raise DataError if no word occurs that often.
        """
        counts = Counter(word for caption in captions for word in split(caption))
        words = sorted((word for word in counts if counts[word] >= min_count), key=lambda w: (-counts[w], w))
        if not words:
            raise DataError(f"no word occurs {min_count} times in the training captions: lower min_count or give more")
        return cls(words, split=split, nearest=nearest)

    def grown(self, captions: Iterable[str], *, min_count: int = 1) -> Vocabulary:
        """Return a vocabulary with the words of more captions after this one's words, which keep their ids.

        Args:
            captions: the captions of another training set.
            min_count: leave out new words that occur less often.
        """
        counts = Counter(word for caption in captions for word in self.split(caption) if word not in self)
        new = sorted((word for word in counts if counts[word] >= min_count), key=lambda w: (-counts[w], w))
        return Vocabulary([*self.words, *new], split=self.split, nearest=self.reads_nearest)

    @property
    def reads_nearest(self) -> bool:
        """Whether an unknown word is read as the known one with the nearest spelling, if one is near."""
        return self._spellings is not None

    def id_of(self, word: str) -> int:
        """Return the id of a word, or ``UNKNOWN`` if it is not in the vocabulary."""
        return self._ids.get(word, UNKNOWN)

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and self.id_of(word) != UNKNOWN

    def nearest(self, word: str) -> str | None:
        """Return the known word that an unknown one is read as, or None."""
        return None if self._spellings is None else self._spellings.nearest(word)

    def read(self, caption: str, max_words: int | None = None) -> list[tuple[str, str | None]]:
        """Return each of the first words of a caption with the known word that replaces it, or None for ``<unk>``."""
        words = self.split(caption)[:max_words]
        return [(word, word if word in self else self.nearest(word)) for word in words]

    def unknown(self, caption: str, max_words: int | None = None) -> list[UnknownWord]:
        """Return the words of a caption that are read and not in the vocabulary, each once."""
        words = dict.fromkeys(self.split(caption)[:max_words])
        return [UnknownWord(word, self.nearest(word)) for word in words if word not in self]

    def ids(self, caption: str, *, boundaries: bool = False, max_words: int | None = None) -> list[int]:
        """Return the token ids of a caption, at least one: a caption without words becomes ``<unk>``.

        With ``boundaries``, ``<start>`` and ``<end>`` surround the words, as in VSE++.
        """
        read = self.read(caption, max_words)
        ids = [UNKNOWN if known is None else self._ids[known] for _, known in read] or [UNKNOWN]
        return [START, *ids, END] if boundaries else ids

    def save(self, path: Path) -> None:
        """Write the words as JSON, by rename, so that a reader never sees half a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"words": self.words}, ensure_ascii=False, indent=0))

    @classmethod
    def load(cls, path: Path, *, split: Splitter = split_words, nearest: bool = False) -> Vocabulary:
        """Read the words that ``save`` wrote. Raise ModelError if the file is missing or damaged."""
        try:
            words = [str(word) for word in read_json(path)["words"]]
        except OSError as error:
            raise ModelError(f"{path} cannot be read: copy or save the whole model folder again") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{path} is not a vocabulary: copy or save the model folder again") from error
        return cls(words, split=split, nearest=nearest)

    def __len__(self) -> int:
        return len(self._ids)


@dataclass(frozen=True)
class UnknownWord:
    """A word of a sentence that a text encoder has not learned.

    Attributes:
        word: the word, as the encoder splits it off.
        read_as: the known word that is read instead. None if there is none.
    """

    word: str
    read_as: str | None = None


@dataclass(frozen=True)
class Coverage:
    """How much of many sentences a text encoder knows.

    Attributes:
        num_tokens: the number of words, or pieces of words, in all sentences.
        num_unknown: the number of these tokens that the encoder does not know.
        num_words: the number of different words. None for an encoder that cuts words into pieces.
        num_known: the number of different words that have their own embedding.
        min_count: how often a word must occur in the training sentences to have its own embedding.
        num_sentences: the number of counted sentences.
        num_cut: the number of sentences that are longer than ``limit``.
        limit: the largest number of words read from a sentence.
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
            sentences: the name of one sentence.

        Example:
            >>> Coverage(1000, 113, 939, 279, 2).describe()
            'vocabulary: 279 of 939 words kept (min_count 2); 11.3 % of the caption tokens are unknown words'
        """
        cut = f"; {self.num_cut:,} of {self.num_sentences:,} {sentences}s are cut at {self.limit}"
        return self._known(sentences) + cut * bool(self.num_cut)

    def _known(self, sentences: str) -> str:
        percent = 100 * self.num_unknown / max(self.num_tokens, 1)
        share = f"{percent:.1f} % of the {sentences} tokens are unknown"
        if self.num_words is None:
            return f"tokenizer: {share if self.num_unknown else f'every {sentences} token is known'}"
        if self.num_known == self.num_words:
            return f"vocabulary: all {self.num_words:,} words kept (min_count {self.min_count})"
        counts = f"{self.num_known:,} of {self.num_words:,} words kept (min_count {self.min_count})"
        return f"vocabulary: {counts}; {share} words"


def unknown_line(words: Iterable[UnknownWord]) -> str:
    """Return a line that names unknown words, each once, or "" if there are none.

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


# Each maps spellings of one sound to one form: British and American English, and common mistakes.
_ALIKE = (
    (re.compile("ph"), "f"),
    (re.compile("ck"), "k"),
    (re.compile("our(?=$|s$|ed$|ing$|ful|less$|it|y$)"), "or"),
    (re.compile("(?<=[a-z]{2}[bt])re(?=s?$)"), "er"),
    (re.compile("(?<=[a-z]{2}[ilnrt])is(?=e|ing|ation)"), "iz"),
    (re.compile("(?<=[gh])ray"), "rey"),
    (re.compile("ogue"), "og"),
    (re.compile("(?<=.)y"), "i"),
    (re.compile("ie|ei"), "i"),
    (re.compile(r"([^aeiou])\1"), r"\1"),
)
_SHORTEST_STEM = 3
_LONG, _VERY_LONG = 6, 8
_VOWEL = re.compile("[aeiouy]")
_HISSES = ("s", "x", "z", "ch", "sh", "o")  # words that take -es
_DOUBLES = re.compile("[^aeiou]*[aeiou][^aeiouwxy]")  # one syllable, whose last letter doubles before -ing


class Spellings:
    """Finds the known word nearest to an unknown one, or none if none is clearly near.

    It tries, in this order: the same word in another form (number, person, tense), the same sounds in another spelling,
    for words of six or more letters, one letter more, less or swapped with its neighbour, and for words of eight or
    more, one letter replaced. The first letter never differs. If several words match, the first known word wins, so the
    preferred ones come first.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._known = {word: position for position, word in enumerate(words)}
        self._forms: dict[str, str] = {}
        self._sounds: dict[str, str] = {}
        self._misspelt: dict[str, str] = {}
        for word in self._known:
            for form in (word, *_stems(word)):
                self._forms.setdefault(form, word)
                self._sounds.setdefault(_sound(form), word)
            if _length(word) >= _LONG - 1:
                for place in range(1, len(word)):
                    self._misspelt.setdefault(word[:place] + word[place + 1 :], word)

    @lru_cache(maxsize=1 << 14)  # noqa: B019 - lives as long as the vocabulary
    def nearest(self, word: str) -> str | None:
        """Return the known word that a word is read as, or None if none is near enough."""
        if not word.isalpha() or len(word) < _SHORTEST_STEM:
            return None
        forms = (word, *_stems(word))
        of_form = [self._forms[form] for form in forms if form in self._forms]
        of_sound = [self._sounds[sound] for form in forms if (sound := _sound(form)) in self._sounds]
        for words in (of_form, of_sound, list(self._one_mistake(word))):
            if fitting := [other for other in words if other[0] == word[0] and other.isalpha()]:
                return min(fitting, key=self._known.__getitem__)
        return None

    def _one_mistake(self, word: str) -> Iterator[str]:
        if _length(word) < _LONG:
            return
        if word in self._misspelt:  # a letter is missing
            yield self._misspelt[word]
        for place in range(1, len(word)):
            shorter = word[:place] + word[place + 1 :]
            if shorter in self._known:  # one letter too many
                yield shorter
            swapped = word[: place - 1] + word[place] + word[place - 1] + word[place + 1 :]
            if swapped in self._known:
                yield swapped
            other = self._misspelt.get(shorter, "")  # equal except for one letter, if it is at the same place
            if _length(word) >= _VERY_LONG and len(other) == len(word) and _differ(word, other) == 1:
                yield other


def _stems(word: str) -> list[str]:
    """Return the words of which an English word may be a form."""
    if word.endswith("s") and not word.endswith("ss"):
        stem = word.removesuffix("es")
        stems = [word[:-1], *([stem] if stem != word and stem.endswith(_HISSES) else [])]
        stems += [word[:-3] + "y"] if word.endswith("ies") else []
    elif word.endswith("ied"):
        stems = [word[:-3] + "y", word[:-1]]
    elif (stem := word.removesuffix("ing").removesuffix("ed")) != word:
        doubled = len(stem) > _SHORTEST_STEM and stem[-1] == stem[-2]
        stems = [stem[:-1] if doubled else stem + "e"]
        stems += [] if _DOUBLES.fullmatch(stem) else [stem]
    else:
        stems = []
    return [stem for stem in stems if len(stem) >= _SHORTEST_STEM and _VOWEL.search(stem)]


def _length(word: str) -> int:
    """Return the letters of a word without its ending, since words with the same ending differ in few letters."""
    return min(map(len, (word, *_stems(word))))


def _sound(word: str) -> str:
    for pattern, letters in _ALIKE:
        word = pattern.sub(letters, word)
    return word


def _differ(one: str, other: str) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))


Cleaning: TypeAlias = Literal["none", "lower", "open_clip"]
"""The name of a cleaning. See ``cleaned``."""


def cleaned(sentence: str, cleaning: Cleaning) -> str:
    r"""Return a sentence in the form for a tokenizer. Halves of surrogate pairs become U+FFFD.

    ``none`` changes nothing else. ``lower`` lowers each letter, as in the training of SigLIP 2 (``Siglip2Tokenizer`` of
    transformers). ``open_clip`` is OpenCLIP's cleaning: it mends encodings, curly quotation marks, ligatures and
    full-width letters (``ftfy``), resolves references of HTML twice, makes white space one space, and lowers letters.

    Example:
        >>> cleaned("Salt &amp;amp; Pepper", "open_clip")
        'salt & pepper'
    """
    sentence = whole_characters(sentence)
    if cleaning == "none":
        return sentence
    if cleaning == "lower":
        return "".join(map(str.lower, sentence))  # one by one: a final sigma stays like the others
    return " ".join(html.unescape(html.unescape(_mended(sentence))).split()).lower()


def _mended(sentence: str) -> str:
    """Return a sentence repaired by ``ftfy``. Printable ASCII without references needs no repair."""
    if sentence.isascii() and sentence.isprintable() and "&" not in sentence:
        return sentence
    from ftfy import fix_text

    mended: str = fix_text(sentence)
    return mended


Encode: TypeAlias = Callable[[Sequence[str]], Sequence[tuple[Sequence[int], Sequence[str]]]]
"""A function that cuts words: the ids of the pieces of each word, and the pieces, without special tokens."""

_CORE = re.compile(r"\w(?:.*\w)?", re.DOTALL)
_SPACE = "▁Ġ"  # how SentencePiece and byte-level tokenizers write the space before a word


def unknown_words(sentence: str, encode: Encode, unknown: int | None) -> list[UnknownWord]:
    """Return the words of a sentence, separated at white space, that a tokenizer lacks or spells out, each once.

    A tokenizer spells out a word of a script that it has hardly learned: it cuts the word into single letters, or each
    letter into bytes. A model for English therefore reads Arabic, but knows its words as little as a missing word.
    ``unknown`` is the id of a piece that the tokenizer lacks, if it has one.
    """
    words = list(dict.fromkeys(sentence.split()))
    texts = [*words, *filter(None, map(_foreign, words))]
    pieces = dict(zip(texts, encode(texts), strict=True)) if texts else {}
    return [
        UnknownWord(word)
        for word in words
        if unknown in pieces[word][0] or _is_spelled_out(_foreign(word), pieces.get(_foreign(word)))
    ]


def count_spelled(sentences: Sequence[str], encode: Encode, unknown: int | None) -> int:
    """Return the number of pieces of all words in some sentences that a tokenizer has but that spell a word out."""
    words = Counter(word for each in sentences if not each.isascii() for word in map(_foreign, each.split()))
    texts = [word for word in words if word]
    cut = zip(texts, encode(texts), strict=True) if texts else ()
    return sum(
        words[word] * len(pieces[0])
        for word, pieces in cut
        if unknown not in pieces[0] and _is_spelled_out(word, pieces)
    )


def _foreign(word: str) -> str:
    """Return a word without the punctuation around it if it has letters, and none of them is of ASCII, otherwise ""."""
    core = "" if word.isascii() else _CORE.search(word)
    is_foreign = core and any(map(str.isalpha, core[0])) and not re.search("[A-Za-z]", core[0])
    return core[0] if core and is_foreign else ""


def _is_spelled_out(word: str, pieces: tuple[Sequence[int], Sequence[str]] | None) -> bool:
    if not word or pieces is None:
        return False
    letters = sum(unicodedata.category(each)[0] in "LN" or unicodedata.category(each) == "Mc" for each in word)
    count = sum(bool(piece.strip(_SPACE)) for piece in pieces[1])
    if count > letters:
        return True  # into parts of letters
    # A Chinese character is a word, and a letter alone may be one.
    is_chinese = any(unicodedata.name(each, "").startswith("CJK ") for each in word)
    return not is_chinese and sum(map(str.isalpha, word)) > 1 and 2 * letters < 3 * count
