"""A server that watches its folders: what is new is found, and embedded once; what cannot be looked at stays."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from openvse.errors import IndexFormatError, ModelError
from openvse.files import locked
from openvse.indexing import Index
from openvse.indexing.readings import read_texts
from openvse.model.two_tower import TwoTower
from openvse.serving import service as watching
from openvse.serving.service import FolderWatch, Service
from openvse.serving.settings import Settings
from photographs import xmp_packet
from tests.conftest import draw_photo
from tests.serving.conftest import SIGN, Place, Signs, client_of, wait_for

pytest.importorskip("watchfiles")
pytestmark = pytest.mark.medium


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the folders more often, so that a test need not wait."""
    for name, milliseconds in {"step": 50, "rust_timeout": 150}.items():
        monkeypatch.setitem(watching._OPTIONS, name, milliseconds)


@pytest.fixture
def embedded(model: TwoTower, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images of each batch that the model embeds from now on."""
    counts: list[int] = []
    before = model.encode_pixels
    monkeypatch.setattr(model, "encode_pixels", lambda images: (counts.append(len(images)), before(images))[1])
    return counts


@contextmanager
def watched(place: Place, model: TwoTower) -> Iterator[Callable[..., set[str]]]:
    """A server that watches; what is yielded returns the names of the images that it finds."""
    with client_of(Service(place.index, model, Settings(reload_s=0.05), watch=True)) as client:

        def found(*where: str) -> set[str]:
            asked = {"q": "grass", "top_k": 50, "where": where}
            reply = client.get("/api/search", params=asked).json()
            return {hit["id"] for hit in reply["hits"]}

        assert len(found()) == 8
        yield found


def test_what_is_new_moved_or_gone_is_found_embedded_and_read_once(
    own_place: Place, model: TwoTower, embedded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Signs()
    monkeypatch.setattr("openvse.search.updating.open_reader", lambda *_: reader)
    read_texts(own_place.index, reader)
    draw_photo(50, SIGN).save(own_place.photos / "50.jpg")  # while no server ran
    with watched(own_place, model) as found:
        wait_for(lambda: "50.jpg" in found())
        draw_photo(51, SIGN).save(own_place.photos / "51.jpg")
        (own_place.photos / "50.jpg").rename(own_place.photos / "trips" / "fifty.jpg")
        (own_place.photos / "001.jpg").unlink()
        (own_place.photos / "002.jpg.xmp").write_bytes(xmp_packet('xmp:Rating="4"'))
        wait_for(lambda: {"51.jpg", "trips/fifty.jpg"} <= found() and not {"50.jpg", "001.jpg"} & found())
        wait_for(lambda: found("rating >= 4") == {"002.jpg"})
        wait_for(lambda: found("text = beach bar") == {"trips/fifty.jpg", "51.jpg"})
    assert (sum(embedded), reader.num_read) == (2, 10)


def test_a_half_written_file_is_tried_again(own_place: Place, model: TwoTower, embedded: list[int]) -> None:
    draw_photo(60).save(own_place.photos / "whole.jpg")
    content = (own_place.photos / "whole.jpg").read_bytes()
    (own_place.photos / "whole.jpg").unlink()
    with watched(own_place, model) as found, (own_place.photos / "half.jpg").open("wb") as file:
        file.write(content[:200])
        file.flush()
        draw_photo(61).save(own_place.photos / "61.jpg")
        wait_for(lambda: "61.jpg" in found())
        assert "half.jpg" not in found()
        file.write(content[200:])
        file.flush()
        wait_for(lambda: "half.jpg" in found())
    assert sum(embedded) == 2


@pytest.mark.parametrize("empty", [True, False])
def test_a_folder_that_disappears_keeps_its_items(
    own_place: Place, model: TwoTower, embedded: list[int], empty: bool
) -> None:
    away = own_place.photos.with_name("away")
    with watched(own_place, model) as found:
        own_place.photos.rename(away)
        if empty:  # the place of a network mount without its content
            own_place.photos.mkdir()
        time.sleep(0.6)  # some looks
        assert len(found()) == 8
        if empty:
            own_place.photos.rmdir()
        away.rename(own_place.photos)
        draw_photo(70).save(own_place.photos / "70.jpg")
        wait_for(lambda: "70.jpg" in found())
        assert len(found()) == 9
    assert sum(embedded) == 1


def test_a_folder_inside_that_is_emptied_keeps_its_items(
    own_place: Place, model: TwoTower, embedded: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    trips = own_place.photos / "trips"
    away = trips.with_name(".away")
    with watched(own_place, model) as found:
        for times, name in enumerate(("1.jpg", "2.jpg"), start=1):
            trips.rename(away)
            trips.mkdir()
            wait_for(lambda times=times: caplog.text.count(f"--forget {trips}") == times)
            assert len(found()) == 8
            trips.rmdir()
            away.rename(trips)
            draw_photo(70 + times).save(trips / name)
            wait_for(lambda name=name: f"trips/{name}" in found())
            (trips / name).unlink()
            wait_for(lambda: len(found()) == 8)
    assert sum(embedded) == 2


@contextmanager
def writing(place: Place) -> Iterator[None]:
    """Write the index, as soon as no update does."""
    with ExitStack() as held:

        def is_mine() -> bool:
            with suppress(IndexFormatError):
                held.enter_context(locked(place.index, "index", IndexFormatError))
                return True
            return False

        wait_for(is_mine)
        yield


def test_an_update_waits_for_another_writer(
    own_place: Place, model: TwoTower, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("openvse.serving.service._RETRY_S", 0.1)
    with watched(own_place, model) as found:
        with writing(own_place):
            draw_photo(80).save(own_place.photos / "80.jpg")
            wait_for(lambda: str(os.getpid()) in caplog.text)
            assert "80.jpg" not in found()
        wait_for(lambda: "80.jpg" in found())
        with writing(own_place):
            pass  # between two updates it is free


def test_an_index_inside_its_folder_does_not_watch_itself(
    own_place: Place, model: TwoTower, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = own_place.photos / "index"
    shutil.copytree(own_place.index, inside)
    updates: list[float] = []
    update = FolderWatch._update
    monkeypatch.setattr(FolderWatch, "_update", lambda self: (updates.append(0), update(self))[1])
    with watched(Place(own_place.photos, inside), model):
        wait_for(lambda: bool(updates))
        time.sleep(0.6)
    assert len(updates) == 1


def test_folders_that_cannot_be_watched_are_looked_at(
    own_place: Place, model: TwoTower, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("limit of watches reached")

    monkeypatch.setattr("watchfiles.watch", refuse)
    monkeypatch.setattr("openvse.serving.service._SCAN_S", 0.1)
    with watched(own_place, model) as found:
        draw_photo(90).save(own_place.photos / "90.jpg")
        wait_for(lambda: "90.jpg" in found())
        time.sleep(0.5)
    assert caplog.text.count("limit of watches reached") == 1


def test_the_end_of_the_server_stops_an_update(own_place: Place, model: TwoTower) -> None:
    for number in range(100, 180):
        draw_photo(number, (32, 32)).save(own_place.photos / f"{number}.jpg")
    watch = FolderWatch(own_place.index, lambda: [own_place.photos], lambda: model)
    watch._ending.set()
    assert watch._update()
    assert len(Index.open(own_place.index)) == 8 + 64  # a batch, which is kept
    watch._ending.clear()
    assert watch._update()
    assert len(Index.open(own_place.index)) == 88


def test_what_cannot_be_watched_is_refused(own_place: Place, model: TwoTower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TwoTower, "makes_index", False)
    with pytest.raises(ModelError, match="--watch"):
        Service(own_place.index, model, Settings(), watch=True)
