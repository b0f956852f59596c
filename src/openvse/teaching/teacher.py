"""The teacher of an index: saves captions, solves the linear maps of its model anew, and embeds all items by them.

``metadata.jsonl`` is the truth, and each caption is on the disk before it is learned. A search in the process of the
teacher knows it at once. The index on the disk follows when nothing was taught for some seconds, and when the teacher
ends: the model goes into a folder of its own beside the items, and one rename makes both the present ones. A teacher
that was killed before finishes it at its next start.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Condition, RLock, Thread
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from openvse.errors import (
    DataError,
    IndexFormatError,
    JsonError,
    MissingItemError,
    OpenVSEError,
    decoded_text,
    message_of,
)
from openvse.exporting.write import write_towers
from openvse.files import locked, parse_json, replacing, several, sync
from openvse.indexing.database import ItemTable
from openvse.indexing.index import Index
from openvse.indexing.manifest import place_of, read_manifest
from openvse.indexing.scanning import METADATA, note_captions
from openvse.indexing.vector_files import MappedVectors
from openvse.indexing.words import query_words
from openvse.indexing.writer import IndexFolder, disk_errors, replace_embeddings
from openvse.media.names import escaped
from openvse.model.two_tower import Tower, TwoTower
from openvse.retrieval.closed_form import (
    LinearMaps,
    Ridge,
    described_by,
    linear_maps,
    maps_of_names,
    sentences_of,
    set_maps,
)
from openvse.retrieval.names import LEAST_CAPTIONED, class_names
from openvse.runtime.model import load_embedder
from openvse.search.sheets import captions_beside
from openvse.teaching.described import FOLDER, Described, can_learn, map_of, name_of, next_images
from openvse.training.inputs import AUTO
from openvse.training.optimizer import BEST

MOST_CHARACTERS, MOST_CAPTIONS = 1000, 20
"""The longest caption, and the most of them that are saved at once."""

_TRIES = 20
_HOW = "give sentences or names of things"


class _ChangedError(Exception):
    """Another program has changed the file since it was read."""


class CaptionFile:
    """The ``metadata.jsonl`` of a folder, or another file of such lines, which is complete at every moment.

    A change keeps every other line byte for byte. If another program has written the file since it was read, both
    changes are kept.

    Args:
        root: the folder of the images.
        file: the file to write. None is the ``metadata.jsonl`` of the folder.

    Raises:
        DataError: the folder cannot be written, has its captions in another form, or its file leads elsewhere.
    """

    def __init__(self, root: Path, file: Path | None = None) -> None:
        self.root, self.path = root, root / METADATA if file is None else file.absolute()
        remedy = "give a file of its own for what you teach: --teach FILE"
        folder = self.path.parent
        if self.path.is_symlink() or not os.access(self.path if self.path.exists() else folder, os.W_OK):
            raise DataError(f"{escaped(self.path)} is a link or cannot be written: {remedy}")
        if not os.access(folder, os.W_OK):
            raise DataError(f"the folder {escaped(folder)} cannot be written: {remedy}")
        if file is None and not self.path.exists() and captions_beside(root):
            raise DataError(f"{escaped(root)} has its captions in files other than {METADATA}: {remedy}")

    def add(self, image: Path, captions: Sequence[str]) -> bytes:
        """Save captions of an image, and return their line."""
        said = {"file_name": Path(os.path.relpath(image, self.path.parent)).as_posix(), "captions": [*captions]}
        try:
            line = f"{json.dumps(said, ensure_ascii=False)}\n".encode()
        except UnicodeEncodeError:
            raise DataError(f"{escaped(image)} has a name that is not UTF-8: rename it to teach it") from None

        def added(lines: list[bytes]) -> list[bytes]:
            ends = not lines or lines[-1].endswith(b"\n")
            return [*lines, *([] if ends else [b"\n"]), line]

        self._change(added)
        return line

    def remove(self, line: bytes) -> bool:
        """Remove the last line like this one, and return whether there was any."""
        found = False

        def removed(lines: list[bytes]) -> list[bytes]:
            nonlocal found
            places = [place for place, each in enumerate(lines) if each.rstrip(b"\r\n") == line.rstrip()]
            found = bool(places)
            return [each for place, each in enumerate(lines) if place not in places[-1:]]

        self._change(removed)
        return found

    def read(self) -> dict[str, list[str]]:
        """Return the captions that lines of this form give images of the folder, by their paths below it."""
        captions: dict[str, list[str]] = {}
        for line in self.path.read_bytes().splitlines() if self.path.exists() else ():
            with suppress(DataError, JsonError, KeyError, TypeError, ValueError):
                entry = parse_json(line.decode())
                said = entry["captions"] if isinstance(entry["captions"], list) else [entry["captions"]]
                image = Path(os.path.normpath(self.path.parent / str(entry["file_name"])))
                captions.setdefault(image.relative_to(self.root).as_posix(), []).extend(map(str, said))
        return captions

    def _change(self, edit: Callable[[list[bytes]], list[bytes]]) -> None:
        """Replace the file by an edited one, again if another program was faster."""
        for _ in range(_TRIES):
            with suppress(_ChangedError):
                self._replace(edit)
                return
        raise DataError(f"{escaped(self.path)} is changed by another program all the time: try again")

    def _replace(self, edit: Callable[[list[bytes]], list[bytes]]) -> None:
        before = self._state()
        content = self.path.read_bytes() if before else b""
        decoded_text(content, self.path)  # a line in UTF-8 would make a file of another encoding unreadable
        with replacing(self.path, keep_mode=True) as partial:
            partial.write_bytes(b"".join(edit(content.splitlines(keepends=True))))
            sync(partial)
            if self._state() != before:
                raise _ChangedError

    def _state(self) -> tuple[int, int, int] | None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


def checked_captions(given: str | Iterable[str]) -> list[str]:
    """Return captions without spaces around them and line ends in them. Raise DataError for what is none."""
    captions = [" ".join(each.split()) for each in several(given, "captions")]
    if not captions or not all(captions):
        raise DataError(f"a caption is empty: {_HOW}")
    if len(captions) > MOST_CAPTIONS or max(map(len, captions)) > MOST_CHARACTERS:
        raise DataError(
            f"{len(captions):,} captions, the longest with {max(map(len, captions)):,} characters: give at most "
            f"{MOST_CAPTIONS} with {MOST_CHARACTERS:,} each"
        )
    for each in captions:
        if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in each):
            raise DataError(f"the caption {escaped(each[:40])} holds control characters: {_HOW}")
    return captions


_LOG = "training.log"
_PATIENCE = 10  # of 19, so that searches come first


class TrainingBeside:
    """Trains the recipe ``folder`` from captions, one training at a time.

    The start of the run is the closed form of its own training images. If training makes it better on validation, the
    model is adopted, and otherwise nothing changes.

    Args:
        folder: the folder of the run, and its log. A new run replaces the one before.
        adopt: a function called with a better model, from another thread.
    """

    def __init__(self, folder: Path, adopt: Callable[[object], None]) -> None:
        self._folder, self._adopt = folder, adopt
        self._process: subprocess.Popen[bytes] | None = None
        self._end = ""

    @property
    def is_running(self) -> bool:
        """Whether a training has not ended, or its model is being adopted."""
        return self._process is not None and not self._end

    @property
    def said(self) -> str:
        """What a training says now, or how it ended. Empty without one."""
        if not self.is_running:
            return self._end
        lines = (self._folder / _LOG).read_text(errors="replace").replace("\r", "\n").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def begin(self, source: Path) -> None:
        """Train from the captions of a folder, or a file.

        Raises:
            DataError: another training has not ended.
        """
        if self.is_running:
            raise DataError("a training is under way: wait until it ends")
        command = [sys.executable, "-m", "openvse", "train", "folder", f"data.source={source}", "--overwrite"]
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / _LOG).open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--out", str(self._folder / "run")], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _PATIENCE)
        self._end = ""
        Thread(target=self._wait, args=(self._process,), name="openvse-training", daemon=True).start()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        try:
            self._end = f"the training failed: {self.said}" if status else self._adopted()
        except Exception as error:  # whatever fails is one line, and ends the training
            self._end = f"the model that was trained is not used: {message_of(error)}"

    def _adopted(self) -> str:
        """Use a better model, and say what it reached."""
        run = self._folder / "run"
        if not (file := run / "before_after.json").exists():
            return self.said  # why nothing was trained
        record = json.loads(file.read_text())
        before, after = (record["metrics"]["rsum"][side] for side in ("before", "after"))
        figures = f"RSUM on validation was {before:.1f} and is {after:.1f} after training"
        if record["best_epoch"] == 0:
            return f"{figures}: the model stays as it was"
        self._adopt(load_embedder(str(run / BEST)).whole)
        return f"{figures}: the search uses the new model"

    def close(self) -> None:
        """End a training that has not ended."""
        if self.is_running and self._process is not None:
            self._process.terminate()


ENOUGH_TO_TRAIN = 400
"""The captioned images from which on training learns more than a linear map: 300 beside those that measure it."""

_TAUGHT = "taught"  # the setting of an index with a digest of what it has learned
_MODEL = "model"  # how the folders of models in an index begin
_QUIET_S, _LONG_S = 10.0, 60.0
_GROWN = 1.25  # how many more captioned images need another ridge
_ALIKE = 0.7  # the cosine from which on words say the same
_SAMPLE = 1000  # items that stand for all
_MOST_WORDS = 500  # of captions, which may be suggested

_logger = logging.getLogger(__name__)


class TaughtModel(TwoTower):
    """A model with other linear maps. Its fingerprint is a name, since hashing the weights takes longer than to learn.

    It shares the encoders of the model, and is not changed after it was made.
    """

    def __init__(self, model: TwoTower, maps: LinearMaps, name: str) -> None:
        image, text = (Tower[Any](side.encoder, deepcopy(side.aggregator)).eval() for side in (model.image, model.text))
        super().__init__(image, text, model.similarity, model.spec, model.provenance)  # type: ignore[arg-type]
        set_maps(self, maps)
        self._name = name

    @property
    def fingerprint(self) -> str:
        return self._name

    def plain(self, description: str) -> TwoTower:
        """Return the model by its own fingerprint, as it is saved."""
        spec: Any = self.spec
        return TwoTower(self.image, self.text, self.similarity, spec, {**self.provenance, "description": description})


class Teacher:
    """Teaches the model of an index of one folder of images or more. A context of one process, which may be closed.

    Where the model cannot learn at once (``can_learn``), captions are saved, and found by their words.

    Args:
        place: the folder of the index.
        model: its model, or towers beside it.
        file: the file of captions. None is the ``metadata.jsonl`` of the first folder.

    Attributes:
        captions: the captions of the items, by their ids.
        saved: the model of the index on the disk.
        training: a training that was begun here.

    Raises:
        DataError: no caption can be saved there.
        IndexFormatError: another process teaches the index, or it is one of sentences, or has an engine.
    """

    def __init__(self, place: Path, model: Any, file: Path | None = None) -> None:
        manifest = read_manifest(place)
        if manifest.holds != "images" or manifest.engine:
            raise IndexFormatError(f"index {place} holds sentences, or has an engine: teach one of images without")
        self.place, self._model = place, model.whole
        with Index.open(place).database() as database:
            self._root, self._learned = database.roots()[0], database.setting(_TAUGHT)
        root = Path(self._root.path)
        self._file = CaptionFile(root, file)
        self.captions: dict[str, list[str]] = {}
        for source in (captions_beside(root), self._file.read() if file else {}):
            for name, texts in source.items():
                self.captions.setdefault(self._root.id_of(name), []).extend(texts)
        self._open = ExitStack()
        (place / FOLDER).mkdir(exist_ok=True)
        self._open.enter_context(locked(place / FOLDER, "the teaching of", IndexFormatError))
        learns = can_learn(self._model)
        self._names = class_names(AUTO, self._model) if learns else ()  # before images are described by its classifier
        self._described = Described(self._model, place) if learns else None
        self._lines: list[tuple[str, bytes]] = []  # what can be undone
        self._unsaid: set[str] = set()  # items whose captions the index does not have as words yet
        self._known: dict[str, Float[np.ndarray, "S"]] = {}  # pooled sentences
        self._turn, self._changed = RLock(), Condition()
        self._number, self._is_ended, self._told = 0, False, ""
        self._mapped, self.saved = self._model, self._model
        self._trained: Any = None  # a model that was trained here, by which items are found
        self._trained_from = 0  # captioned images of the last training
        self.training = TrainingBeside(place / FOLDER / "trained", self._use)
        self._solved: tuple[int, Ridge] | None = None  # from how many images ridge and share were chosen
        none = np.empty(0, np.int64)
        self._seen: tuple[ItemTable, Int[np.ndarray, "count"]] = ItemTable([], *[none] * 7), none  # rows of the items
        self._rows: dict[str, int] = {}
        self._vectors: tuple[object, object, Float[np.ndarray, "count D"]] | None = None  # by a model, of some rows
        self._look(Index.open(place))
        self._learn()
        self._settling = Thread(target=self._follow, name="openvse-teach", daemon=True)
        self._settling.start()

    # What is said, and kept.

    @property
    def number(self) -> int:
        """A number that changes whenever something was learned."""
        return self._number

    @property
    def model(self) -> Any:
        """The model that knows what was taught."""
        return self._trained or self._mapped

    def teach(self, item: str, captions: str | Iterable[str]) -> None:
        """Save captions of an item, and learn from them. The captions that it has stay.

        Raises:
            DataError: a caption is empty, too long or not printable, or the item is not in the first folder.
            MissingItemError: the index holds no such item.
            DiskError: the file of captions cannot be written. It is unchanged.
        """
        said, name = checked_captions(captions), self._root.name_of(item)
        with self._turn:
            if item not in self._rows:
                self._look(Index.open(self.place))
            if item not in self._rows:
                raise MissingItemError(f"the index holds no item {escaped(item)}: give the path of an image")
            path = Path(self._root.path, name)
            if self._root.id_of(name) != item or not path.is_file():
                raise DataError(f"{escaped(item)} is not there, or not in {escaped(self._root.path)}: teach another")
            self._lines.append((item, self._file.add(path, said)))
            self.captions.setdefault(item, []).extend(said)
            self._taught(item)

    def undo(self) -> str | None:
        """Remove the captions that were taught last, learn without them, and return their item, or None without any."""
        with self._turn:
            if not self._lines:
                return None
            item, line = self._lines[-1]
            if self._file.remove(line):
                for each in json.loads(line)["captions"]:
                    with suppress(ValueError):
                        self.captions[item].remove(each)
            self._lines.pop()
            if not self.captions.get(item):
                self.captions.pop(item, None)
            self._taught(item)
            return item

    def _taught(self, item: str) -> None:
        self._unsaid.add(item)
        self._say()
        self._learn(anew=False)
        with self._changed:
            self._changed.notify_all()

    def _say(self) -> None:
        """Give the index the words of captions. Where it is being written, the next caption or indexing does."""
        if not self._unsaid:
            return
        with suppress(IndexFormatError), disk_errors(self.place), IndexFolder(self.place) as opened:
            if (found := opened.find()) is not None:
                with found.database.transaction():
                    for item in self._unsaid:
                        name = self._root.name_of(item)
                        note_captions(found.database, self._root, name, self.captions.get(item, ()))
                self._unsaid.clear()

    # What is learned.

    @cached_property
    def _table(self) -> Float[np.ndarray, "K S"]:
        """The sentences of the names of the classes. All are 0 without names."""
        described, classes = described_by(self._model), self._model.image.aggregator.classes
        if self._names:
            return sentences_of(described, self._names)
        return np.zeros((classes, self._model.text.aggregator.linear.in_features))

    def _sentences(self, texts: Sequence[str]) -> Float[np.ndarray, "m S"]:
        """Return what the linear map of texts reads of sentences."""
        if new := [each for each in dict.fromkeys(texts) if each not in self._known]:
            self._known |= zip(new, sentences_of(described_by(self._model), new), strict=True)
        return np.array([self._known[each] for each in texts]).reshape(-1, self._table.shape[1])

    def _learn(self, *, anew: bool = True) -> None:
        """Solve the maps from all captions, or from the names if these are few. ``present`` has the result.

        Unless ``anew``, the ridge and the share of the middle stay until there are a quarter more images.
        """
        self._number += 1
        if self._described is None:
            return
        captioned = {item: texts for item, texts in self.captions.items() if self._rows.get(item, -1) >= 0}
        width = self._model.image.aggregator.linear.out_features
        if len(captioned) >= LEAST_CAPTIONED:
            images = self._described.rows(np.array([self._rows[item] for item in captioned]))
            owners = np.repeat(np.arange(len(captioned)), [len(texts) for texts in captioned.values()])
            sentences = self._sentences([text for texts in captioned.values() for text in texts])
            middle = self._model.image.aggregator.middle
            count, like = self._solved or (0, None)
            if anew or not count / _GROWN < len(captioned) < count * _GROWN:
                count, like = len(captioned), None
            maps, found = linear_maps(images, sentences, owners, self._table, width, middle=middle, like=like)
            self._solved = count, found
        elif self._table.any() and (self._mapped is not self._model or self._learned):
            there = np.array([row for row in self._rows.values() if row >= 0])
            seen = self._described.rows(there[:: len(there) // _SAMPLE + 1]).mean(0)
            pooled = len(seen) - len(self._table)
            maps = maps_of_names(self._table, seen[pooled:], pooled, width)
        else:
            return
        self._mapped = TaughtModel(self._model, maps, f"taught-{self._number}")

    def _look(self, index: Index) -> Int[np.ndarray, "count"]:
        """Return the rows of the descriptions of all items, and describe those that are not described yet."""
        table, (before, rows) = index.table, self._seen
        if table.ids == before.ids and np.array_equal(table.modified_ns, before.modified_ns):
            return rows
        rows = np.full(len(index), -1, np.int64)
        if self._described is not None:
            paths = [index.image_path(place) for place in range(len(index))]
            facts = zip(paths, table.modified_ns.tolist(), table.sizes.tolist(), strict=True)
            names = [name_of(*each) for each in facts]
            self._described.add(zip(names, paths, strict=True))
            rows = self._described.positions(names)
        self._seen, self._rows = (table, rows), dict(zip(table.ids, rows.tolist(), strict=True))
        return rows

    def present(self, index: Index) -> tuple[Any, Index]:
        """Return the model and the index of a search that knows what was taught, for the index as it is opened."""
        with self._turn:
            rows, model = self._look(index), self.model
            if not isinstance(model, TaughtModel):
                return model, index
            files = (MappedVectors(self._embedded(rows, model)[:, np.newaxis], np.arange(len(index), dtype=np.int32)),)
            manifest = replace(index.manifest, model=model.fingerprint, dtype="float32")
            return model, replace(index, manifest=manifest, vector_files=files)

    def _embedded(self, rows: Int[np.ndarray, "count"], model: TwoTower) -> Float[np.ndarray, "count D"]:
        """Return the embeddings of all items by a model."""
        assert self._described is not None, "only such a model learns"
        if self._vectors is None or self._vectors[0] is not model or self._vectors[1] is not rows:
            self._vectors = model, rows, self._described.mapped(rows, *map_of(model.image))
        return self._vectors[2]

    # What the index on the disk knows.

    def _follow(self) -> None:
        """Let the index on the disk follow when nothing was taught for some seconds, and its towers when for longer."""
        quiet, finished = 0.0, self._model
        if self._described is not None:
            _ = self._table  # so that the first caption does not wait for it
        while not self._is_ended:
            number = self._number
            with self._changed:
                self._changed.wait(_QUIET_S)
            quiet = quiet + _QUIET_S if number == self._number else 0.0
            if quiet and not self._is_ended:
                self.settle()
            if quiet >= _LONG_S and finished is not self.saved:
                finished = self.saved
                with suppress(OpenVSEError):  # another process writes the index, and the towers with it
                    write_towers(finished, self.place)

    def settle(self) -> None:
        """Let the index on the disk know what was learned, if it does not. A failure is a warning, and the next try's.

        Until the rename of its manifest, the index is as before. Then searches load PyTorch until its towers are there,
        which the next indexing or search by the folder writes, if no long pause of teaching does.
        """
        with self._turn:
            digest = hashlib.sha256(json.dumps(sorted(self.captions.items())).encode()).hexdigest()[:16]
            if not isinstance(self.model, TaughtModel) or digest == self._learned:
                return
            self._learn()
            live, rows = self._mapped, self._seen[1]

        def embed(index: Index) -> Float[np.ndarray, "count K D"]:
            with self._turn:
                return self._embedded(self._look(index), live)[:, np.newaxis]

        try:
            if -1 in rows:
                raise DataError(f"{int((rows < 0).sum()):,} images cannot be read")
            self._publish(live.plain(f"A linear map from {len(self.captions):,} captioned images."), embed, digest)
        except OpenVSEError as error:
            if message_of(error) != self._told:
                _logger.warning("the index on the disk does not know yet what was taught: %s", message_of(error))
            self._told = message_of(error)
        with self._turn:
            self._say()

    def _publish(self, model: TwoTower, embed: Callable[[Index], Float[np.ndarray, "count K D"]], digest: str) -> None:
        """Save a model in the index, and give all items its embeddings by one rename."""
        folder = model.save(self.place / f"{_MODEL}-{model.fingerprint}")
        replace_embeddings(self.place, model.fingerprint, place_of(folder, self.place), embed, {_TAUGHT: digest})
        self.saved, self._learned = model, digest
        for other in self.place.glob(f"{_MODEL}*"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)

    def train(self) -> None:
        """Begin to train a model from the captions in another process. ``training`` tells how far it is.

        Raises:
            DataError: there are too few captions, or another training has not ended.
        """
        if len(self.captions) < ENOUGH_TO_TRAIN:
            raise DataError(f"{len(self.captions):,} captioned images are too few to train: caption {ENOUGH_TO_TRAIN}")
        self._trained_from = len(self.captions)
        self.training.begin(Path(self._root.path) if self._file.path.name == METADATA else self._file.path)

    def _use(self, trained: Any) -> None:
        """Let the index, and all searches, use a model that was trained. The linear maps go on to suggest words."""
        known: dict[tuple[str, int, int], Float[np.ndarray, "K D"]] = {}

        def embed(index: Index) -> Float[np.ndarray, "count K D"]:
            table = index.table
            facts = [*zip(table.ids, table.modified_ns.tolist(), table.sizes.tolist(), strict=True)]
            if new := [place for place, fact in enumerate(facts) if fact not in known]:
                rows = trained.encode_image(index.image_path(place) for place in new).vectors.numpy()
                known.update(zip([facts[place] for place in new], rows, strict=True))
            return np.stack([known[fact] for fact in facts])

        embed(Index.open(self.place))  # before others have to wait
        with self._turn:
            self._publish(trained, embed, "")
            self._trained, self._number = trained, self._number + 1

    def close(self) -> None:
        """End a training, let the index on the disk follow, and let others teach."""
        self._is_ended = True
        self.training.close()
        with self._changed:
            self._changed.notify_all()
        self._settling.join()
        self.settle()
        self._open.close()

    # What is asked next.

    def next(self, count: int = 1, skip: Collection[str] = ()) -> list[str]:
        """Return the items without a caption whose captions are expected to help most, the best first."""
        with self._turn:
            if self._described is None:
                order = random.Random(0).sample(sorted(self._rows), len(self._rows))
                return [each for each in order if each not in self.captions and each not in skip][:count]
            names = {row: name for name, row in self._rows.items() if row >= 0}
            asked = {row for row, name in names.items() if name not in self.captions and name not in skip}
            images = self._described.directions
            passed = np.setdiff1d(np.arange(len(images)), [*asked])
            return [names[row] for row in next_images(images, passed, count)]

    def words(self, item: str, count: int = 12) -> list[str]:
        """Return the best names and words of captions for an item, by how much better they fit it than other items."""
        with self._turn:
            model, row = self._mapped, self._rows.get(item, -1)
            if self._described is None or row < 0:
                return []
            words, raw = self._candidates()
            weight, bias = map_of(model.text)
            vectors = raw @ weight + bias
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            sample = [row, *[*self._rows.values()][:: len(self._rows) // _SAMPLE + 1]]
            own, *others = self._described.mapped(np.array(sample), *map_of(model.image))
            chosen: list[int] = []
            for place in np.argsort(-(vectors @ (own - np.mean(others, axis=0))), kind="stable").tolist():
                if len(chosen) == count:
                    break
                if (vectors[chosen] @ vectors[place]).max(initial=-1) < _ALIKE:
                    chosen.append(place)
            return [words[place] for place in chosen]

    def _candidates(self) -> tuple[list[str], Float[np.ndarray, "n S"]]:
        """Return words with what the map of texts reads: the names of classes, and the words of captions."""
        names = [name.partition(":")[0].partition(",")[0] for name in self._names]
        said = Counter(word for texts in self.captions.values() for text in texts for word in query_words(text))
        own = [word for word, _ in said.most_common(_MOST_WORDS) if word not in names]
        return [*names, *own], np.concatenate([self._table[: len(names)], self._sentences(own)])

    def progress(self) -> dict[str, Any]:
        """Return how much was taught, from how many captioned images on it is learned, and what a training says."""
        enough = max(ENOUGH_TO_TRAIN, self._trained_from + 1)
        can_train = self._described is not None and len(self.captions) >= enough
        return {
            "items": len(self._rows),
            "captioned": len(self.captions),
            "learns_from": None if self._described is None or self._trained is not None else LEAST_CAPTIONED,
            "can_train": can_train and not self.training.is_running,
            "is_training": self.training.is_running,
            "training": self.training.said,
        }
