"""The results of a search: hits by similarity and by words, their probabilities, answers to queries, and judgements."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import DataError, ModelError
from openvse.files import parse_json, sync, whole_characters, writing
from openvse.indexing.database import Forms
from openvse.indexing.words import TITLE_KEYS, line_of
from openvse.media.names import escaped
from openvse.media.segments import ClipSegment
from openvse.media.text_reading import TextLine
from openvse.output.table import Cell, Table, data_frame
from openvse.scoring.calibration import Calibration
from openvse.search.exact import WordHits
from openvse.stores.base import Note
from openvse.tokenization.vocabulary import UnknownWord

REACH = 60
"""The number of words of a run of lines, as on a receipt or a screen."""

LOOKED_AT = 500
"""The largest number of texts that are searched for runs of lines. For the others the rarest word counts."""

_SHOWN = 3  # lines of a hit

ReadText: TypeAlias = tuple[list[TextLine], str]
"""The lines of an item, and their words, a line each."""


def beside_each_other(hits: WordHits, texts: Mapping[int, str], forms: Forms) -> WordHits:
    """Return the hits with the shares of the best run of lines of each text, whose words are given by position."""
    weights, shares = np.array(hits.weights), hits.shares.copy()
    wanted = [[line_of(parts) for parts in forms[word]] for word in hits.words]
    for row, position in enumerate(hits.positions.tolist()):
        held = [bit for bit in range(len(weights)) if int(hits.bits[row]) >> bit & 1]
        if (text := texts.get(position)) is None:
            shares[row] = weights[held].max()
        elif len(held) > 1 and text.count(" ") > REACH:
            shares[row] = round(max(_shares_of_runs(text.split("\n"), wanted, weights)), 6)
    order = np.lexsort((hits.positions, -shares))
    return replace(hits, positions=hits.positions[order], shares=shares[order], bits=hits.bits[order])


def _shares_of_runs(lines: Sequence[str], wanted: Sequence[Sequence[str]], weights: np.ndarray) -> list[float]:
    """Return the share of each run of lines: as many as have ``REACH`` words, and at least one."""
    held = np.array([[any(form in line for form in forms) for forms in wanted] for line in lines])
    lengths = [max(1, line.count(" ") - 1) for line in lines]
    shares, first, length = [], 0, 0
    for last, more in enumerate(lengths):
        length += more
        while first < last and length > REACH:
            length -= lengths[first]
            first += 1
        shares.append(float(weights[held[first : last + 1].any(axis=0)].sum()))
    return shares


def joined_words(named: WordHits, read: WordHits) -> WordHits:
    """Return the items with words in their names and metadata, or in their texts, each with the better share."""
    words = tuple(dict.fromkeys((*named.words, *read.words)))
    positions = np.union1d(named.positions, read.positions)
    shares, bits = np.zeros(len(positions)), np.zeros(len(positions), np.uint64)
    for hits in (named, read):
        places = np.searchsorted(positions, hits.positions)
        shares[places] = np.maximum(shares[places], hits.shares)
        for bit, word in enumerate(hits.words):
            bits[places] |= (hits.bits >> np.uint64(bit) & np.uint64(1)) << np.uint64(words.index(word))
    order = np.argsort(-shares, kind="stable")
    return WordHits(positions[order], shares[order], words, bits[order])


def lines_with(text: ReadText, matched: Sequence[str], forms: Forms) -> tuple[TextLine, ...]:
    """Return the lines of a text that have words, with the best lines first, no more than a hit shows."""
    wanted = [[line_of(parts) for parts in forms.get(word, ())] for word in matched]
    having = [sum(any(form in line for form in each) for each in wanted) for line in text[1].split("\n")]
    places = sorted((place for place, count in enumerate(having) if count), key=lambda place: -having[place])
    return tuple(text[0][place] for place in places[:_SHOWN])


ValueT = TypeVar("ValueT")


class ByteCache(Generic[ValueT]):
    """A cache of ``limit`` bytes that drops the least recently used values. Several threads may use it."""

    def __init__(self, limit: int, size: Callable[[Any], int] = len) -> None:
        self._limit, self._size, self._bytes = limit, size, 0
        self._values: OrderedDict[Hashable, ValueT] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of bytes in the cache."""
        return self._bytes

    def find(self, key: Hashable) -> ValueT | None:
        """Return the value of a key, or None."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def keep(self, key: Hashable, value: ValueT) -> None:
        """Store a value, unless another thread has stored one for the key."""
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._bytes += self._size(value)
            while self._bytes > self._limit:
                _, gone = self._values.popitem(last=False)
                self._bytes -= self._size(gone)


FITS = {"likely": 0.5, "possible": 0.1, "unlikely": 0.0}
"""The words for an image's fit to a sentence, each with its lowest probability."""

SAID = 0.95
"""The lowest probability of an item if its names and metadata have all words of the sentence."""

FILE_KEYS = ("file_name", "image", "path", "video", "split")
"""Keys of the users' metadata that name the file of a line or its place, and nothing of its content."""

_WRITTEN = (
    *("rank", "score", "probability", "fit", "title", "id", "path"),
    *("start", "end", "by", "matched", "text", "alike"),
)


def title_of(metadata: Mapping[str, object]) -> str:
    """Return the best title in a user's metadata: a caption, a title or another text, or "" without one."""
    named = [metadata.get(key) for key in TITLE_KEYS]
    named = [value[0] if isinstance(value, list) and value else value for value in named]
    others = [
        value for key, value in metadata.items() if key not in (*FILE_KEYS, "date", "taken", "camera", "color_label")
    ]
    for value in (*named, *others):
        if isinstance(value, str) and any(map(str.isalpha, value)):
            return " ".join(value.split())
    return ""


@dataclass(frozen=True)
class Hit:
    """An item that answers a query.

    Attributes:
        rank: 1 is the best.
        score: similarity of query and item.
        id: path below the indexed folder.
        path: the path of the image in the index, which ``source`` checks.
        probability: the probability that the image is relevant to the sentence, among as many images as were searched.
            It is None without a curve from score to probability, for a query that is not just a sentence, and for a
            word or two if the number of images that show them is unknown.
        start: the start of a segment of a clip, in seconds, or None for a whole file.
        end: where it ends.
        title: the item's title in the user's metadata: a caption, a title or another text, or "" without one.
        fit: ``probability`` in a word (``FITS``), or "" if it is None, or low and the item has words of the sentence.
        uncertainty: the sum of the variances of the item, if its embedding is a distribution.
        by: why it was found: ``similarity``, ``words``, or ``both`` if similarity alone had shown it by this page, too.
        matched: the words of the sentence that it has, among the looked-up words.
        text: the lines that were read in the image and have words of the sentence, at most three.
        alike: the number of near duplicates among the searched items, or 0 unless the page has one hit a scene.
        key: the number of the item, which no other item ever gets.
        note: the facts of its index, whose folders must hold ``source``, or None for a hit of your own.
    """

    rank: int
    score: float
    id: str
    path: Path
    probability: float | None = None
    start: float | None = None
    end: float | None = None
    title: str = ""
    fit: str = ""
    uncertainty: float | None = None
    by: Literal["similarity", "words", "both"] = "similarity"
    matched: tuple[str, ...] = ()
    text: tuple[TextLine, ...] = ()
    alike: int = 0
    key: int = field(default=0, compare=False, repr=False)
    note: Note | None = field(default=None, compare=False, repr=False)

    @property
    def source(self) -> Path | ClipSegment:
        """The file of the hit or a part of it, for a model or a page, if it may be shown (``Note.shown``)."""
        path = self.path if self.note is None else self.note.shown(self.path)
        return path if self.start is None or self.end is None else ClipSegment(path, self.start, self.end)

    def __repr__(self) -> str:
        facts = (f"{self.score:.4f}", self.fit, self.title, *map(repr, self.matched))
        return f"Hit {self.rank}: {self.id} ({', '.join(filter(None, facts))})"

    def _repr_html_(self) -> str:
        return Hits([self])._repr_html_()

    def to_json(self) -> dict[str, Any]:
        """Return the hit in its JSON form."""
        written = {name: getattr(self, name) for name in _WRITTEN}
        text = [line.to_json() for line in self.text]
        return written | {"path": str(self.path), "matched": [*self.matched], "text": text} | uncertainty_of(self)


class Hits(list[Hit]):
    """The hits of a query, best first: a list that shows itself as a table in a terminal and a notebook."""

    @overload
    def __getitem__(self, place: SupportsIndex, /) -> Hit: ...
    @overload
    def __getitem__(self, place: slice, /) -> Hits: ...
    def __getitem__(self, place: SupportsIndex | slice, /) -> Hit | Hits:
        found = super().__getitem__(place)
        return Hits(found) if isinstance(found, list) else found

    def table(self) -> Table:
        """Return the hits as a table."""
        rows: list[list[Cell]] = [
            [each.rank, f"{each.score:.4f}", each.fit, each.id, ", ".join(each.matched)] for each in self
        ]
        columns = ["rank", "score", "fit", "id", "matched"]
        shown = [number for number, _ in enumerate(columns) if number < 2 or any(row[number] for row in rows)]
        return Table([columns[at] for at in shown], [[row[at] for at in shown] for row in rows])

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the facts of each hit, by name."""
        return [hit.to_json() for hit in self]

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row for each hit. Raise OpenVSEError without pandas."""
        return data_frame(self.to_dicts())

    def __repr__(self) -> str:
        return self.table().to_text() if self else "no hits"

    def _repr_html_(self) -> str:
        return self.table().to_html()


def uncertainty_of(result: Hit | Answer) -> dict[str, float]:
    """Return the uncertainty of a hit or of a query in its JSON form: under its name, or nothing without one."""
    return {} if result.uncertainty is None else {"uncertainty": result.uncertainty}


@dataclass(frozen=True)
class Probabilities:
    """The probabilities of the hits of a sentence.

    Args:
        curve: the curve of the model and the kind of query. None gives no probabilities.
        searched: the number of items that were searched.
        expected: the expected number of items that are relevant to the sentence. None takes the curve's data.
        min_precision: the lowest probability of a hit. None takes all hits.
        captioned: the share of the items' contents that their captions name, for a query of so few words that it has a
            curve of its own, or None.
        part: the curve of an item that has some words of a short query. None takes ``curve``.
    """

    curve: Calibration | None
    searched: int
    expected: float | None
    min_precision: float | None
    captioned: float | None = None
    part: Calibration | None = None

    def check(self) -> None:
        """Raise ModelError for a precision or an expected number without a curve."""
        given = [name for name in ("min_precision", "expected") if getattr(self, name) is not None]
        if given and self.curve is None:
            raise ModelError(
                f"{given[0]} needs the curve from score to probability, which this model does not have for such "
                "an index: fit it with 'openvse evaluate MODEL --on DATA --split validation --calibrate', on captioned "
                "images that the model was not trained on"
            )

    def out_of_reach(self) -> tuple[str, ...]:
        """Return a warning if no score by itself makes an item probable enough. Words of the sentence may do so."""
        highest = 1.0 if self.curve is None else self.curve.highest(self.searched, self.expected)
        if self.min_precision is None or self.min_precision <= highest:
            return ()
        return (
            f"precision {self.min_precision:g} is out of reach among {self.searched:,} images: the best score has the "
            f"probability {highest:.2g}",
        )

    def of(
        self,
        scores: Float[np.ndarray, "n"],
        among: Int[np.ndarray, "n"] | None = None,
        shares: Float[np.ndarray, "n"] | None = None,
        unnamed: float = 1.0,
    ) -> list[tuple[float | None, str]]:
        """Return the probability of each score of a sentence, and the same in a word (``FITS``).

        ``among`` is how many items have the same words of the sentence (all, for one that has none), and ``shares`` the
        share of the words that an item has. All are a second reason, and one that has some is not called unlikely.
        ``unnamed`` is how often a relevant item has none.
        """
        if self.curve is None:
            return [(None, "")] * len(scores)
        shares = np.zeros(len(scores)) if shares is None else shares
        sizes = np.full(len(scores), self.searched) if among is None else among
        likely = np.zeros(len(scores))
        for size in np.unique(sizes).tolist():
            for curve, kind in ((self.curve, shares % 1 == 0), (self.part or self.curve, shares % 1 > 0)):
                some = kind & (sizes == size)
                likely[some] = curve.probabilities(scores[some], size, self.expected)
        lacking = np.where(shares > 0, 1.0, unnamed)
        likely = likely * lacking / (likely * lacking + 1 - likely)
        likely = np.where(shares == 1, 1 - (1 - likely) * (1 - SAID), likely)
        words = [next(word for word, least in FITS.items() if fit >= least) for fit in likely.tolist()]
        words = ["" if some and word == "unlikely" else word for some, word in zip(shares, words, strict=True)]
        return list(zip(likely.tolist(), words, strict=True))

    def suffices(self, probability: float | None) -> bool:
        """Return whether a hit is probable enough."""
        return probability is None or self.min_precision is None or probability >= self.min_precision

    def fits(self) -> dict[str, float | None]:
        """Return the lowest score of each word of ``FITS``, or None if no score is enough."""
        if self.curve is None:
            return {}
        return {word: self.curve.threshold(p, self.searched, self.expected) for word, p in FITS.items() if p}


@dataclass(frozen=True)
class Answer:
    """The answer to a query: a page of its hits.

    Attributes:
        hits: the hits of the page, best first.
        searched: the number of compared items, or an estimate for a store without its index.
        more: whether there may be further hits.
        unknown_words: words of the query that the model does not know.
        probabilities: the source of the probabilities, or None for a query that is not just a sentence.
        before: the rank of each hit before reranking, by its id, or empty.
        warnings: a line for each condition about a key, or a type of values, that no item has, and for a precision that
            no score reaches, if nothing else makes an item probable enough.
        uncertainty: the sum of the variances of a query of one part, if its embedding is a distribution.
    """

    hits: Hits
    searched: int = 0
    more: bool = False
    unknown_words: tuple[UnknownWord, ...] = ()
    probabilities: Probabilities | None = None
    before: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    uncertainty: float | None = None

    def __repr__(self) -> str:
        return f"{str(self.hits).rstrip()}\n{len(self.hits)} of {self.searched:,} searched"


JUDGEMENTS = "judgements.jsonl"
"""The name of the file in the folder of an index."""

_MOST_BYTES = 64 << 20
_KNOWN = {True: True, False: False, None: None}


class Judgements:
    """The judgements in a file, which need not exist. Lines are only added, and the last on a query and item counts.

    A line is ``{"query": "a dog", "item": "holiday/0001.jpg", "fits": true}``. An item is named by its path below the
    indexed folder, and ``null`` takes back what was said of it. A line that a stopped process, or a full disk, left
    unfinished is left out, and the next one begins on a line of its own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: object = None
        self._known: dict[str, dict[str, bool]] = {}

    @property
    def state(self) -> object:
        """A value that changes with every judgement. Raise DataError if the file is a link, no file, or very large."""
        if not os.path.lexists(self.path):
            return None
        found = self.path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            raise DataError(f"{escaped(self.path)} is a link, no file or larger than {_MOST_BYTES:,} bytes: remove it")
        return found.st_ino, found.st_mtime_ns, found.st_size

    def every(self) -> Mapping[str, Mapping[str, bool]]:
        """Return, for each query, whether the judged items fit, in the order in which they were judged last."""
        if (state := self.state) != self._seen:
            known: dict[str, dict[str, bool]] = {}
            for line in self.path.read_bytes().splitlines() if state else ():
                with suppress(ValueError, KeyError, TypeError, DataError):
                    said = parse_json(line.decode())
                    query, item, fits = plain(said["query"]), str(said["item"]), _KNOWN[said["fits"]]
                    known.setdefault(query, {}).pop(item, None)
                    if fits is not None:
                        known[query][item] = fits
            self._seen, self._known = state, {query: items for query, items in known.items() if items}
        return self._known

    def of(self, query: str) -> Mapping[str, bool]:
        """Return whether the judged items fit a query."""
        return self.every().get(plain(query), {})

    def add(self, query: str, item: str, fits: bool | None) -> None:
        """Add a judgement, which is on the disk afterwards. Raise DiskError if it cannot be: all others stay."""
        if not plain(query):
            raise DataError("a judgement needs the sentence that was searched: give it as the query")
        _ = self.state
        said = {"query": plain(query), "item": whole_characters(item), "fits": fits}
        with writing(self.path, "the judgements in it stay"), self.path.open("a+b") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            is_torn = file.read(1) not in (b"", b"\n")
            file.write(b"\n" * is_torn + json.dumps(said, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        sync(self.path.parent)


def plain(query: str) -> str:
    """Return a query as judgements name it: without capitals, and with one space between words."""
    return " ".join(whole_characters(query).casefold().split())
