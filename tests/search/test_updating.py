"""One function makes an index and brings it up to date, for the command, the watcher and Python."""

from pathlib import Path

import pytest

from colour_model import COLOURS, ColourModel, paint
from openvse.errors import ModelError
from openvse.indexing import Index
from openvse.indexing.manifest import find_model, read_manifest
from openvse.pipeline import WorkProgress
from openvse.search.hits import ByteCache
from openvse.search.updating import IndexSettings, index
from openvse.stores.choice import EngineAddress
from tests.runtime.colour_export import write_export


@pytest.mark.medium
def test_what_is_not_said_is_as_before(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    out, steps = tmp_path / "index", []

    def told(step: str, state: WorkProgress) -> None:
        steps.append((step, state.done, state.total))

    settings = IndexSettings(ignore=["blue.png"], dtype="float16", engine="int8")
    first = index(model, str(photos), str(out), settings, progress=told)
    assert (first.items.count, first.engine.put, first.engine.name, first.bank) == (3, 3, "int8", None)
    assert ("images", 3, 3) in steps and ("engine", 3, 3) in steps
    paint(photos / "new.png", "red")
    again = index(model, [photos], out, check=True)
    assert (again.items.count, again.items.reused, again.engine.put) == (4, 3, 1)
    assert read_manifest(out).dtype == "float16"
    assert EngineAddress.of(out, read_manifest(out).engine).engine == "int8"
    assert [item.id for item in Index.open(out).items] == ["deeper/white.png", "green.png", "new.png", "red.png"]
    last = index(model, photos, out, IndexSettings(ignore=[], engine="exact"))
    assert (last.items.count, last.engine.name) == (5, "exact")


def test_folders_are_added_and_forgotten(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    more = tmp_path / "more"
    paint(more / "black.png", "green")
    index(model, photos, tmp_path / "index")
    assert index(model, more, tmp_path / "index", add=True).items.count == 5
    assert index(model, photos, tmp_path / "index", forget=[str(more)]).items.count == 4


def test_a_model_may_be_named(tmp_path: Path) -> None:
    for name in COLOURS:
        paint(tmp_path / "photos" / f"{name}.png", name)
    export = write_export(tmp_path / "export")
    assert index(export, tmp_path / "photos", tmp_path / "index").items.count == len(COLOURS)
    assert find_model(tmp_path / "index")[0] == str(export)
    with pytest.raises(ModelError):
        index("runs/mine/best", tmp_path / "photos", tmp_path / "index")


def test_what_was_not_used_for_longest_is_forgotten() -> None:
    kept, made = ByteCache[bytes](100), list[str]()

    for name in ("a", "b", "a", "c", "a", "b"):
        if kept.find(name) is None:
            made.append(name)
            kept.keep(name, bytes(40))
        assert len(kept) <= 100
    assert made == ["a", "b", "c", "b"]  # b was not used for longest when c came


def test_what_is_too_large_is_not_kept_and_the_first_of_two_stays() -> None:
    kept = ByteCache[str](3)
    kept.keep("a", "long")
    assert kept.find("a") is None and len(kept) == 0
    kept.keep("b", "one")
    kept.keep("b", "two")
    assert kept.find("b") == "one" and len(kept) == 3
