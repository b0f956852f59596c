"""The data of a server: one state of an index or a store, and the source that notices a new one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from openvse.errors import IndexFormatError, MissingItemError
from openvse.indexing import Index
from openvse.indexing.manifest import MANIFEST, read_manifest
from openvse.media.names import escaped
from openvse.media.segments import file_of
from openvse.media.text_reading import TextLine
from openvse.scoring.hubs import BANK
from openvse.search import Answer, Hit, SearchEngine
from openvse.search.hits import FILE_KEYS, JUDGEMENTS, Judgements, uncertainty_of
from openvse.search.provided import Teaches
from openvse.serving.batching import RememberingModel
from openvse.stores import EngineAddress
from openvse.stores.following import state_file

_VALUES_SHOWN = 12
_VALUE_CHARACTERS = 40
_COUNT_AGAIN_S = 15.0


@dataclass(frozen=True)
class Source:
    """An index or a store to serve, opened again after every change. See ``SearchEngine`` for the fields.

    With ``judged``, hits of an index can be judged, and what was said of them counts. A ``teacher`` changes the index.
    """

    place: Path | EngineAddress
    engine: str | None = field(default=None, repr=False)
    images: Path | None = None
    judged: bool = False
    teacher: Teaches | None = field(default=None, repr=False)

    @property
    def pause_s(self) -> float:
        """The least number of seconds between two checks for changes, 0 for an index."""
        return _COUNT_AGAIN_S if isinstance(self.place, EngineAddress) else 0.0

    def open(self, model: RememberingModel) -> Served:
        """Return its present state."""
        opened: Any = self.place if isinstance(self.place, EngineAddress) else Index.open(self.place)
        folders = () if isinstance(self.place, EngineAddress) else (self.place,)
        if self.teacher is not None:
            taught, opened = self.teacher.present(opened)
            model = model.of(taught)
        served = Served(SearchEngine(model, opened, engine=self.engine, images=self.images), folders)
        if self.judged and isinstance(self.place, Path):
            served.engine.judgements = Judgements(self.place / JUDGEMENTS)
        return served

    def state(self, served: Served | None) -> object:
        """Return a value that every change changes. The items of a store, which ``served`` holds, are counted again."""
        if isinstance(self.place, EngineAddress):
            if served is not None:
                served.recount()
            return None
        manifest = read_manifest(self.place)
        address = EngineAddress.of(self.place, None if self.engine == "exact" else manifest.engine)
        files = [self.place / MANIFEST, self.place / manifest.items, self.place / BANK]
        if address.engine != "exact":  # it is written when the engine has followed the index
            files.append(state_file(address))
        stats = [file.stat() if file.exists() else None for file in files]
        taught = 0 if self.teacher is None else self.teacher.number
        return taught, *(each and (each.st_ino, each.st_mtime_ns, each.st_size) for each in stats)


class Served:
    """One served state: an engine, and its items by their keys, which clients use.

    The paths of its roots and of further ``folders`` are hidden from clients. ``fields`` are the keys of the users'
    metadata, each with some of its values, the most frequent first. ``hidden_fields`` are keys that name such a path
    and take no conditions.
    """

    def __init__(self, engine: SearchEngine, folders: Sequence[Path] = ()) -> None:
        self.engine, self._catalogue = engine, engine.catalogue
        try:
            if engine.note.holds != "images":
                raise IndexFormatError(f"{self._catalogue.place or 'the index'} holds sentences: give one of images")
            self._folders = folders
            self._place = _anywhere([*map(Path, (root.path for root in engine.note.roots)), *folders])
            pairs = self._catalogue.metadata_values()
            self.hidden_fields = {name for name, value in pairs if self._place.search(value)}
            values = [pair for pair in pairs if not self._place.search(pair[1])]
            self.fields = _fields_of([pair for pair in values if pair[0] not in self.hidden_fields])
            self.titles = sorted({value for name, value in values if name == "title"})
            self._count = len(self._catalogue)
        except BaseException:
            engine.close()
            raise

    def __len__(self) -> int:
        return self._count

    def recount(self) -> None:
        """Count the items again."""
        self._count = len(self._catalogue)

    @property
    def has_images(self) -> bool:
        """Whether one of the indexed folders is on this machine."""
        return any(Path(root.path).is_dir() for root in self.engine.note.roots)

    @property
    def far_roots(self) -> list[Path]:
        """The indexed folders that share no folder with the index but the top one, such as "/" itself."""
        return self.engine.note.far_roots(*self._folders)

    def key(self, item_id: str) -> int:
        """Return the key of an item. Raise MissingItemError if its id is unknown."""
        return self._catalogue.key_of(self._catalogue.position(item_id))

    def id_of(self, key: int) -> str:
        """Return the id of an item. Raise MissingItemError if its key is unknown."""
        return self._catalogue.id_of(self._catalogue.at(key))

    def version(self, key: int) -> str:
        """Return a text that changes when the file of an item changes."""
        return self._catalogue.version(self._catalogue.at(key))

    def file(self, key: int) -> Path:
        """Return the file of an item, resolved, if it may be shown (``Note.shown``)."""
        path = self._catalogue.path_of(self._catalogue.at(key))
        if not self.has_images:
            remedy = "say where the first one is with --images" if self._catalogue.place else "index them again"
            raise MissingItemError(f"the indexed folders are not on this machine, so no image is shown: {remedy}")
        return self.engine.note.shown(path)

    def readable(self, value: Any) -> Any:
        """Return a value of JSON whose texts every client can decode, without the paths of the folders."""
        match value:
            case str():
                text = self._place.sub(lambda match: Path(match[1]).name * (not match[2]), value)
                return text.encode("utf-8", "backslashreplace").decode()
            case dict():
                return {self.readable(str(key)): self.readable(each) for key, each in value.items()}
            case list():
                return [self.readable(each) for each in value]
            case float() if value - value != 0:  # NaN or infinite, which is no JSON
                return str(value)
        return value

    def describe(self, key: int) -> dict[str, Any]:
        """Return the facts of an item: id, kind, time, size, and the user's metadata."""
        position = self._catalogue.at(key)
        facts, ((lines, _),) = self._catalogue.facts(position), self._catalogue.texts_of([position])
        changed = datetime.fromtimestamp(facts.modified_ns / 1e9, UTC)
        version = self.version(key)
        return {
            "key": key,
            "id": escaped(facts.path),
            "name": escaped(facts.path.rpartition("/")[2]),
            "kind": facts.kind,
            "modified": changed.isoformat(timespec="seconds"),
            "size": facts.size,
            "metadata": self.readable(facts.metadata),
            "text": [*map(self._describe_line, lines)],
            "file": f"/api/items/{key}/file?v={version}",
            "thumbnail": f"/api/items/{key}/thumbnail?v={version}",
        }

    def judged(self, query: str) -> dict[str, Any]:
        """Return the judged items of a query, how many judgements move probabilities, and what 0.5 has become."""
        said = {} if self.engine.judgements is None else self.engine.judgements.of(query)
        items = []
        for item, fits in said.items():
            with suppress(MissingItemError):
                items.append({"key": self.key(item), "id": escaped(item), "fits": fits})
        moved, count = self.engine.moved_by_judgements()
        return {"items": items, "moving": count, "half_is_now": round(1 / (1 + math.exp(-moved)), 4)}

    def _describe_line(self, line: TextLine) -> dict[str, Any]:
        return {**line.to_json(), "text": self.readable(line.text)}

    def describe_answer(self, answer: Answer, captions: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Return the answer to a query for a reply, in which a caption names its item."""
        hits = [replace(hit, title=next(iter(captions.get(hit.id, ())), hit.title)) for hit in answer.hits]
        return {
            "hits": [self._describe_hit(hit, answer.before.get(hit.id)) for hit in hits],
            "searched": answer.searched,
            "more": answer.more,
            "fits": {} if answer.before or answer.probabilities is None else answer.probabilities.fits(),
            "unknown_words": [{"word": word.word, "read_as": word.read_as} for word in answer.unknown_words],
            "warnings": [*answer.warnings],
            **uncertainty_of(answer),
        }

    def _describe_hit(self, hit: Hit, before: int | None) -> dict[str, Any]:
        known = ("rank", "probability", "fit", "key", "by", "alike")
        return {name: getattr(hit, name) for name in known} | {
            "was": before,
            "score": round(hit.score, 6),
            "id": escaped(hit.id),
            "title": self.readable(hit.title) or _spelled(hit.id),
            "thumbnail": f"/api/items/{hit.key}/thumbnail?v={self.version(hit.key)}",
            "matched": [*hit.matched],
            "text": [self._describe_line(line) for line in hit.text],
            **uncertainty_of(hit),
        }


def _fields_of(values: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Return some values of each key that a condition can name, in the order of the keys."""
    fields: dict[str, list[str]] = {}
    for name, value in values:
        some = fields.setdefault(name, [])
        if len(some) < _VALUES_SHOWN and len(value) <= _VALUE_CHARACTERS:
            some.append(value)
    return {name: fields[name] for name in sorted(fields) if name not in FILE_KEYS and not {*name} & {*'"\\'}}


def _anywhere(folders: Sequence[Path]) -> re.Pattern[str]:
    """Return a function that finds the paths of folders in a text, each with the slash after it if there is one."""
    places = {str(path) for folder in folders for path in (folder.absolute(), folder.resolve())} - {"/"}
    places |= {quote(place) for place in places}  # as in a URL
    names = "|".join(re.escape(place) for place in sorted(places, key=len, reverse=True)) or "(?!)"
    return re.compile(rf"(?:(?<![^\s'\"(\[:=;,|])|(?<=file://))({names})(/|(?![^\s'\")\]:;,|]))")


def _spelled(name: str) -> str:
    """Return the name of a file. Words that hyphens or underscores join are set apart."""
    last = file_of(name).rpartition("/")[2]
    words = re.split(r"[-_ ]+", last.rpartition(".")[0])
    return escaped(" ".join(words) if len(words) > 1 and all(map(str.isalpha, words)) else last)
