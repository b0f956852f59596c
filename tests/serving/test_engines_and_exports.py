"""Engines in the place of an index folder, and exported models in the place of models of PyTorch."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from local_qdrant import LOCAL, local_qdrant  # noqa: F401 - a fixture of all tests here
from openvse.cli.commands.serve import load_answerer, load_second, load_served, source_of
from openvse.cli.options import Reranking
from openvse.errors import EngineError, IndexFormatError, OpenVSEError
from openvse.indexing import Index, build_index
from openvse.indexing.manifest import read_manifest
from openvse.model.two_tower import TwoTower
from openvse.runtime import OnnxModel
from openvse.search import Page, SearchEngine
from openvse.search.catalogue import IndexCatalogue
from openvse.search.proposing import StoreSearch
from openvse.serving.served import Source
from openvse.serving.service import Service
from openvse.serving.settings import Settings
from openvse.stores import EngineAddress
from openvse.stores.following import plan_engine, update_engine
from openvse_engines.catalogue import StoreCatalogue
from tests.conftest import draw_photo
from tests.runtime.colour_export import COLOURS, write_export
from tests.serving.conftest import Place, client_of, png

pytestmark = pytest.mark.filterwarnings("ignore:Local mode performs exact", "ignore:Payload indexes")


def filled(place: Place, name: str, url: str | None = None) -> EngineAddress:
    """Bring an engine up to date with an index, and return where it is."""
    plan_engine(place.index, url or name).note(place.index)
    update_engine(place.index, url=url)
    noted = (read_manifest(place.index).engine or {})["place"]
    return EngineAddress(name, noted, url or "", place.index, url or "")


@pytest.mark.medium
def test_an_engine_is_served_like_its_index(own_place: Place, model: TwoTower) -> None:
    exact = SearchEngine(model, Index.open(own_place.index), engine="exact")
    source = Source(filled(own_place, "qdrant", LOCAL))
    with client_of(Service(source, model, Settings())) as client:
        reply = client.get("/api/search", params={"q": "a red dog runs", "top_k": 3}).json()
        assert [hit["id"] for hit in reply["hits"]] == [
            hit.id for hit in exact.answer("a red dog runs", Page(3, only="similarity"))[0].hits
        ]
        assert reply["more"] and reply["searched"] == 8
        first = reply["hits"][0]
        thumbnail = client.get(first["thumbnail"])
        assert (thumbnail.status_code, thumbnail.headers["content-type"]) == (200, "image/webp")
        item = client.get(f"/api/items/{first['key']}").json()
        assert item["id"] == first["id"] and item["captions"] and item["metadata"]["year"] >= 2000
        assert client.get("/api/items", params={"id": first["id"]}).json()["key"] == first["key"]
        like = client.get(f"/api/items/{first['key']}/similar", params={"top_k": 8}).json()["hits"]
        assert first["id"] not in [hit["id"] for hit in like] and len(like) == 7
        some = client.get("/api/search", params={"q": "grass", "where": "year = 2001"}).json()["hits"]
        assert sorted(hit["id"] for hit in some) == ["001.jpg", "006.jpg"]
        found = client.post("/api/search/image", params={"q": "grass"}, files={"image": png()}).json()
        assert len(found["hits"]) == 8
        looked = client.get(f"/api/items/{first['key']}/looked", params={"q": "grass"})
        assert looked.status_code == 200
        told = client.get("/api/info").json()
        assert told["items"] == 8 and told["shows"]
        assert [field["name"] for field in told["fields"]] == ["captions", "year"]
        assert client.get("/api/items/999").status_code == 404
        assert client.get("/api/items/999/thumbnail").status_code == 404
        assert client.get("/api/items", params={"id": "nothing"}).status_code == 404


@pytest.mark.medium
def test_a_server_follows_an_index_and_then_its_engine(own_place: Place, model: TwoTower) -> None:
    """The engine follows after the index, and until then what it lacks is searched exactly."""
    filled(own_place, "int8")
    service = Service(own_place.index, model, Settings(reload_s=0.02))

    def missing() -> int:
        catalogue = service.served.engine.catalogue
        assert isinstance(catalogue, IndexCatalogue) and isinstance(catalogue.searcher, StoreSearch)
        return catalogue.searcher.num_missing

    with client_of(service) as client:

        def wait_for(items: int, lacking: int) -> None:
            until = time.monotonic() + 20
            while (client.get("/api/info").json()["items"], missing()) != (items, lacking):
                assert time.monotonic() < until, f"{len(service.served)} items, {missing()} missing"
                time.sleep(0.02)
            found = client.get("/api/search", params={"q": "grass", "top_k": items}).json()["hits"]
            assert len({hit["id"] for hit in found}) == items

        wait_for(8, 0)
        for number in range(100, 103):
            draw_photo(number).save(own_place.photos / f"{number}.jpg")
        build_index(model, own_place.photos, own_place.index)
        wait_for(11, 3)
        update_engine(own_place.index)
        wait_for(11, 0)


@pytest.mark.medium
def test_folders_that_are_elsewhere_are_told_and_found(own_place: Place, model: TwoTower) -> None:
    address = filled(own_place, "qdrant", LOCAL)
    moved = own_place.photos.rename(own_place.photos.parent / "moved")
    with client_of(Service(Source(address), model, Settings())) as client:
        assert client.get("/api/info").json()["shows"] is False
        hit = client.get("/api/search", params={"q": "grass"}).json()["hits"][0]
        gone = client.get(hit["thumbnail"])
        assert gone.status_code == 404 and "--images" in gone.json()["error"]
    source = Source(address, images=moved)
    with client_of(Service(source, model, Settings())) as client:
        assert client.get("/api/info").json()["shows"] is True
        assert client.get(hit["thumbnail"]).status_code == 200


@pytest.mark.medium
def test_an_engine_that_fails_is_opened_anew(
    own_place: Place, model: TwoTower, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(filled(own_place, "qdrant", LOCAL))
    settings = Settings(reload_s=0.02)
    broken = True
    nearest = StoreCatalogue.nearest

    def failing(*args: object, **options: object) -> object:
        if broken:
            raise EngineError("the server cannot be used")
        return nearest(*args, **options)  # type: ignore[arg-type]

    service = Service(source, model, settings)
    with client_of(service) as client:
        before = service.served
        monkeypatch.setattr(StoreCatalogue, "nearest", failing)
        hidden = client.get("/api/search", params={"q": "grass"})
        assert hidden.status_code == 503 and "engine" in hidden.text
        broken = False
        until = time.monotonic() + 20
        while service.served is before and time.monotonic() < until:
            time.sleep(0.02)
        assert service.served is not before
        assert len(client.get("/api/search", params={"q": "grass"}).json()["hits"]) == 8


@pytest.mark.medium
def test_engines_are_closed_after_a_reload_and_at_the_end(
    own_place: Place, model: TwoTower, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[SearchEngine] = []

    def close(self: SearchEngine) -> None:
        closed.append(self)

    monkeypatch.setattr(SearchEngine, "close", close)
    service = Service(own_place.index, model, Settings(reload_s=60.0))
    first = service.served.engine
    with client_of(service):
        (own_place.photos / "001.jpg").unlink()
        build_index(model, own_place.photos, own_place.index)
        assert service.reload()
        last = service.served.engine
    service._main.shutdown(wait=True)
    assert closed == [first, last]


@pytest.mark.medium
def test_the_command_tells_engines_from_folders(own_place: Place, model: TwoTower, tmp_path: Path) -> None:
    folder = str(model.save(tmp_path / "model"))
    source = source_of(str(own_place.index), folder, None, "exact")
    assert source == Source(own_place.index, "exact")
    loaded, named = load_served(source, folder)
    assert (loaded.fingerprint, named) == (model.fingerprint, folder)
    address = filled(own_place, "qdrant", LOCAL)
    word = f"{LOCAL}/{address.name}"
    source = source_of(word, folder, own_place.photos, None)
    assert isinstance(source.place, EngineAddress) and source.images == own_place.photos
    with pytest.raises(OpenVSEError, match="--model"):
        source_of(word, None, None, None)
    with pytest.raises(OpenVSEError, match="--engine"):
        source_of(word, folder, None, "exact")
    with pytest.raises(OpenVSEError, match="--images"):
        source_of(str(own_place.index), folder, own_place.photos, None)
    with pytest.raises(IndexFormatError, match="index"):
        load_served(source_of(str(tmp_path / "model"), folder, None, None), folder)


@pytest.fixture
def painted(tmp_path: Path) -> tuple[Path, Path]:
    """An exported model, and an index that it made."""
    export, photos = write_export(tmp_path / "exported"), tmp_path / "painted"
    photos.mkdir()
    for name, colour in COLOURS.items():
        Image.new("RGB", (40, 30), colour).save(photos / f"{name}.png")
    build_index(OnnxModel(export), photos, tmp_path / "index")
    return export, tmp_path / "index"


@pytest.mark.medium
def test_an_exported_model_is_served(painted: tuple[Path, Path], place: Place) -> None:
    export, index = painted
    with client_of(Service(index, OnnxModel(export), Settings())) as client:
        for name in COLOURS:
            reply = client.get("/api/search", params={"q": f"something {name}", "top_k": 2}).json()
            assert reply["hits"][0]["id"] == f"{name}.png" and reply["more"]
            assert reply["unknown_words"] == [{"word": "something", "read_as": None}]
        like = client.post("/api/search/image", files={"image": png(Image.new("RGB", (9, 9), "blue"))}).json()
        assert like["hits"][0]["id"] == "blue.png"
        both = client.get("/api/search", params={"q": "red", "avoid": "green", "like": reply["hits"][0]["key"]})
        assert both.status_code == 200
        told = client.get("/api/info").json()
        assert told["looks"] is False and told["images"] is True
        looked = client.get("/api/items/1/looked", params={"q": "red"})
        assert looked.status_code == 422 and "exported" in looked.json()["error"]


@pytest.mark.medium
def test_the_engine_of_an_index_is_served_with_an_exported_model(painted: tuple[Path, Path]) -> None:
    export, index = painted
    filled(Place(index, index), "int8")
    for engine, told in (("int8", "int8"), ("exact", "exact"), (None, "int8")):
        source = source_of(str(index), str(export), None, engine)
        service = Service(source, OnnxModel(export), Settings())
        catalogue = service.served.engine.catalogue
        assert isinstance(catalogue, IndexCatalogue) and catalogue.searcher.name == told
        with client_of(service) as client:
            assert client.get("/api/search", params={"q": "blue"}).json()["hits"][0]["id"] == "blue.png"


@pytest.mark.medium
def test_an_engine_is_served_with_an_exported_model(painted: tuple[Path, Path]) -> None:
    export, index = painted
    address = filled(Place(index, index), "qdrant", LOCAL)
    with client_of(Service(Source(address), OnnxModel(export), Settings())) as client:
        hits = client.get("/api/search", params={"q": "green"}).json()["hits"]
        assert [hit["rank"] for hit in hits] == [1, 2, 3] and hits[0]["id"] == "green.png"
        like = client.get("/api/search", params={"q": "red", "like": hits[0]["key"], "avoid": "blue"}).json()
        assert {hit["id"] for hit in like["hits"]} == {"red.png", "blue.png"}


def test_what_needs_pytorch_is_refused_for_an_export(painted: tuple[Path, Path]) -> None:
    export, _ = painted
    with pytest.raises(OpenVSEError, match="--rerank.*PyTorch"):
        load_second(Reranking(str(export)), "cpu")
    with pytest.raises(OpenVSEError, match="--answer.*PyTorch"):
        load_answerer(str(export), "cpu")


@pytest.mark.slow
def test_serving_an_export_loads_no_pytorch(painted: tuple[Path, Path]) -> None:
    export, index = painted
    code = """
import sys
from pathlib import Path
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "accelerate", "safetensors", "yaml"):
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Blocked())
from starlette.testclient import TestClient
from openvse.runtime import OnnxModel
from openvse.serving.settings import Settings
from openvse.serving.server import create_app
from openvse.serving.served import Source
from openvse.serving.service import Service
service = Service(Path(sys.argv[2]), OnnxModel(sys.argv[1]), Settings())
with TestClient(create_app(service), base_url="http://127.0.0.1") as client:
    print(client.get("/api/search", params={"q": "red"}).json()["hits"][0]["id"])
    print(client.get("/api/items/1/thumbnail").status_code)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(export), str(index)],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    assert (done.stdout, done.returncode) == ("red.png\n200\n", 0), done.stderr
