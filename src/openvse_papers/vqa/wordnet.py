"""The nouns of WordNet, from its files, and their similarity."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from openvse.errors import DataError
from openvse.files import read_lines

_FILES = ("index.noun", "data.noun")
_INSTALLED = (Path("/usr/share/wordnet"), Path("/usr/share/nltk_data/corpora/wordnet"))
_ENDINGS = (
    ("s", ""),
    ("ses", "s"),
    ("ves", "f"),
    ("xes", "x"),
    ("zes", "z"),
    ("ches", "ch"),
    ("shes", "sh"),
    ("men", "man"),
    ("ies", "y"),
)
"""The rules that turn plural nouns into singular ones, as in WordNet's Morphy."""


class _Sense(NamedTuple):
    """A meaning: its place in the data, its name, and the senses of which it is a kind or an instance."""

    offset: int
    word: str
    above: tuple[int, ...]


class WordNet:
    """WordNet's nouns and Wu and Palmer's similarity between them (ACL 1994).

    The numbers equal nltk's ``wup_similarity`` (version 3.10).

    Args:
        folder: the folder with ``index.noun``, ``data.noun`` and optionally ``noun.exc``: WordNet's folder ``dict``
            (Fellbaum, 1998, wordnet.princeton.edu), Debian's package ``wordnet-base``, or nltk's ``corpora/wordnet``.

    Raises:
        DataError: the files are missing, or do not belong to WordNet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self._data = (folder / "data.noun").read_bytes()
            self._index = dict(_entries(read_lines(folder / "index.noun")))
            exceptions = read_lines(folder / "noun.exc") if (folder / "noun.exc").is_file() else []
        except OSError as error:
            raise DataError(
                f"{folder}: {' and '.join(_FILES)} of WordNet cannot be read there ({error.strerror}): give the folder "
                "that holds them, for instance Debian's, from the package wordnet-base"
            ) from error
        except (ValueError, IndexError) as error:
            raise self._damaged("index.noun") from error
        self._exceptions = {words[0]: words[1:] for words in map(str.split, exceptions) if words}
        self._depths: dict[int, tuple[int, int]] = {}

    @cache  # noqa: B019 - lives as long as the evaluation
    def similarity(self, one: str, other: str) -> float:
        """Return the similarity of the most similar senses of two nouns, from 0 to 1.

        It is 1 for equal words and 0 if one of them is not a noun in WordNet. Plurals are understood. The words of a
        compound may be separated by a space, a hyphen or an underscore.

        Raises:
            DataError: the data are damaged.
        """
        if one == other:
            return 1.0
        senses = [(a, b) for a in self.senses(one) for b in self.senses(other)]
        return max((self._wu_palmer(a, b) for a, b in senses), default=0.0)

    def senses(self, word: str) -> list[int]:
        """Return the places of the senses of a noun in ``data.noun``, empty for an unknown word."""
        plain = word.lower().strip().replace(" ", "_")
        parts = plain.replace("-", "_").split("_")
        for written in (plain, *(joint.join(parts) for joint in ("_", "-", ""))):
            offsets = [offset for form in self._forms(written) for offset in self._index.get(form, ())]
            if offsets:
                return offsets
        return []

    def _forms(self, word: str) -> list[str]:
        """Return a word and its possible singular forms."""
        singular = self._exceptions.get(word) or [
            word.removesuffix(end) + new for end, new in _ENDINGS if word.endswith(end)
        ]
        return list(dict.fromkeys([word, *singular]))

    def _wu_palmer(self, one: int, other: int) -> float:
        """Return 2 d / (d1 + d2), with the depths of the lowest common ancestor and of both senses by way of it.

        The lowest ancestor is the one whose shortest path to the root is longest. Its depth is its longest path. Of
        several, the first sense counts, then the first name. From a sense to this ancestor the shortest path counts,
        even if it leads through an ancestor of both.
        """
        common = self._distances(one).keys() & self._distances(other).keys()
        if not common:
            return 0.0
        lowest = max(self._depth(node)[0] for node in common)
        nodes = [node for node in common if self._depth(node)[0] == lowest]
        node = one if one in nodes else min(nodes, key=self._name)
        depth = self._depth(node)[1] + 1
        return 2 * depth / (self._steps(one, node) + self._steps(other, node) + 2 * depth)

    def _steps(self, sense: int, ancestor: int) -> int:
        up, further = self._distances(sense), self._distances(ancestor)
        return min(up[node] + steps for node, steps in further.items())

    @cache  # noqa: B019
    def _distances(self, offset: int) -> dict[int, int]:
        """Return the steps to each ancestor on the shortest path. A sense is its own ancestor."""
        steps = {offset: 0}
        level = {offset}
        while level:
            level = {up for node in level for up in self._sense(node).above if up not in steps}
            steps |= dict.fromkeys(level, max(steps.values()) + 1)
        return steps

    def _depth(self, offset: int, below: tuple[int, ...] = ()) -> tuple[int, int]:
        """Return the steps to the root on the shortest and on the longest path."""
        if offset not in self._depths:
            if offset in below:
                raise self._damaged("data.noun")
            ways = [self._depth(up, (*below, offset)) for up in self._sense(offset).above]
            shortest = min((way[0] + 1 for way in ways), default=0)
            self._depths[offset] = shortest, max((way[1] + 1 for way in ways), default=0)
        return self._depths[offset]

    def _name(self, offset: int) -> str:
        """Return the first word of a sense and the number of the sense, as in nltk: ``dog.n.01``."""
        word = self._sense(offset).word
        number = self._index.get(word, (offset,)).index(offset) + 1
        return f"{word}.n.{number:02d}"

    @cache  # noqa: B019
    def _sense(self, offset: int) -> _Sense:
        try:
            return self._parse(offset)
        except (ValueError, IndexError) as error:
            raise self._damaged("data.noun") from error

    def _parse(self, offset: int) -> _Sense:
        """Read a line of ``data.noun``: offset, file, kind, words with their ids, pointers (wndb(5WN))."""
        line = self._data[offset : self._data.index(b"\n", offset)].decode()
        fields = line.partition("|")[0].split()
        if int(fields[0]) != offset:
            raise ValueError("no line begins here")
        after_words = 4 + 2 * int(fields[3], 16)
        pointers = fields[after_words + 1 :]
        above = [
            int(pointers[place + 1])
            for place in range(0, 4 * int(fields[after_words]), 4)
            if pointers[place] in ("@", "@i")
        ]
        return _Sense(offset, fields[4].lower(), tuple(above))

    def _damaged(self, name: str) -> DataError:
        return DataError(f"{self.folder / name}: not in WordNet's format: install WordNet again")


def find_wordnet() -> Path | None:
    """Return the folder of WordNet: $WNSEARCHDIR, $WNHOME/dict, or Debian's folder. None if there is none."""
    home, places = os.environ.get("WNHOME"), list(_INSTALLED)
    if home:
        places.insert(0, Path(home) / "dict")
    if directory := os.environ.get("WNSEARCHDIR"):
        places.insert(0, Path(directory))
    return next((place for place in places if all((place / name).is_file() for name in _FILES)), None)


def _entries(lines: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
    """Return the offsets of each word's senses, the last fields of its line. The licence before them is skipped."""
    entries = []
    for line in lines:
        if not line.startswith(" "):
            fields = line.split()
            entries.append((fields[0], tuple(map(int, fields[-int(fields[2]) :]))))
    return entries
