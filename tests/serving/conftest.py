"""A small index of drawn images, tiny untrained models, and a server of them."""

import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient
from uvicorn import Server

from openvse.indexing import build_index
from openvse.indexing.readings import read_texts
from openvse.media.text_reading import TextLine
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.serving.server import create_app, listen, make_server
from openvse.serving.service import Service
from openvse.serving.settings import Settings
from openvse.tasks.recipes import parse_recipe
from openvse_papers.vqa.answerer import build_answerer
from openvse_papers.vqa.answers import AnswerVocabulary
from openvse_papers.vqa.explain import ServedAnswerer
from tests.conftest import draw_photo
from tests.tiny_questions import COLOURS, answering_tree

ENCODER = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 64}
WORDS = ["a red dog runs", "the green cat sleeps", "two blue birds in the water", "grass"]
NUM_PHOTOS = 60
SIGN = (128, 64)
BOX = ((0.1, 0.2), (0.5, 0.2), (0.5, 0.3), (0.1, 0.3))


def make_model(seed: int, aggregator: object = "gpo", more: dict[str, str] | None = None) -> TwoTower:
    """Return an untrained model whose scores of different images differ."""
    tree = {
        "name": "tiny",
        "embed_dim": 16,
        "image": {"encoder": {**ENCODER, "projection": "linear", **(more or {})}, "aggregator": aggregator},
        "text": {"encoder": {"name": "bigru", "word_dim": 8, "min_count": 1}, "aggregator": "gpo"},
        "objective": {"ranking": {"name": "contrast", "miner": "hardest", "criterion": "hinge"}},
        "training": {"phases": [{"epochs": 1}]},
    }
    model = build_model(parse_recipe(tree), captions=WORDS, seed=seed).eval()
    photos = [draw_photo(number, (64, 64)) for number in range(8)]
    with torch.no_grad():  # the random network hardly answers at all: bring what it says of photos to unit spread
        encoder = model.image.encoder
        local = encoder(model.read_images(photos)).local
        for weight in encoder.projection.parameters():
            if weight.ndim == 1:
                weight.copy_(-local.mean(dim=(0, 1)) / local.std())
            else:
                weight.div_(local.std())
    return model


@pytest.fixture(scope="session")
def model() -> TwoTower:
    return make_model(0)


@pytest.fixture(scope="session")
def second() -> TwoTower:
    return make_model(1)


@pytest.fixture(scope="session")
def answerer() -> ServedAnswerer:
    torch.manual_seed(2)
    image = {"encoder": {**ENCODER, "augmentation": "none"}, "aggregator": "tokens"}
    tree = answering_tree(Path()) | {"image": image}
    answers = AnswerVocabulary(COLOURS, votes=False)
    model = build_answerer(parse_recipe(tree), questions=["what colour is the dog"], answers=answers)
    return ServedAnswerer(model.eval())


def write_photos(folder: Path, count: int = NUM_PHOTOS) -> Path:
    """Draw photos, some of them in a folder below, with captions and metadata."""
    (folder / "trips").mkdir(parents=True)
    lines = []
    for number in range(count):
        name = f"trips/{number:03d}.jpg" if number % 4 == 0 else f"{number:03d}.jpg"
        draw_photo(number, (96, 72)).save(folder / name, quality=90)
        said = {"file_name": name, "captions": [WORDS[number % 3]], "year": 2000 + number % 5}
        lines.append(json.dumps(said))
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@dataclass(frozen=True)
class Place:
    """Where the photos and their index are."""

    photos: Path
    index: Path


def make_place(folder: Path, model: TwoTower, count: int = NUM_PHOTOS) -> Place:
    photos = write_photos(folder / "photos", count)
    build_index(model, photos, folder / "index")
    return Place(photos, folder / "index")


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory, model: TwoTower) -> Place:
    """An index that no test changes."""
    return make_place(tmp_path_factory.mktemp("served"), model)


@pytest.fixture
def own_place(tmp_path: Path, model: TwoTower) -> Place:
    """An index of a few photos that a test may change."""
    return make_place(tmp_path, model, 8)


@dataclass
class Signs:
    """A reader that reads the same line in every photo of the size of a sign."""

    name: str = "signs"
    num_read: int = 0

    def read(self, image: Image.Image) -> list[TextLine]:
        self.num_read += 1
        return [TextLine("Beach bar", 0.98, BOX)] if image.size == SIGN else []


def write_pages(place: Place, model: TwoTower) -> None:
    """Add a TIFF of two pages to an index, and read its text, which is on the second one."""
    draw_photo(1, (40, 30)).save(place.photos / "two.tif", save_all=True, append_images=[draw_photo(7, SIGN)])
    build_index(model, place.photos, place.index)
    read_texts(place.index, Signs())


def wait_for(what: Callable[[], bool], *, seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.1)  # the update needs the processor, too


@contextmanager
def client_of(service: Service) -> Iterator[TestClient]:
    app, here = create_app(service), ("127.0.0.1", 50_000)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False, client=here) as client:
        yield client


@pytest.fixture(scope="session")
def service(place: Place, model: TwoTower, second: TwoTower, answerer: ServedAnswerer) -> Service:
    settings = Settings(rerank_top=5)
    names = {"model": "tiny", "rerank": "second", "answer": "answerer"}
    return Service(place.index, model, settings, reranker=second, answerer=answerer, names=names)


@pytest.fixture(scope="session")
def client(service: Service) -> Iterator[TestClient]:
    """A client of a server with all models, without limits."""
    with client_of(service) as client:
        yield client


@dataclass
class Running:
    """A server on a port of this machine."""

    service: Service
    server: Server
    url: str
    port: int


@pytest.fixture
def running() -> Iterator[Callable[[Service], Running]]:
    """Return a function that starts a server on a free port; it ends with the test."""
    started: list[tuple[Server, threading.Thread]] = []

    def start(service: Service) -> Running:
        opened, settings = listen(replace(service.settings, port=0))
        opened.listen(1024)
        server = make_server(create_app(service), service.limits)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
        thread.start()
        started.append((server, thread))
        url = f"http://127.0.0.1:{settings.port}"
        for _ in range(400):
            with suppress(httpx.TransportError):
                if httpx.get(f"{url}/ready").status_code == 200:
                    break
            time.sleep(0.05)
        return Running(service, server, url, settings.port)

    yield start
    for server, thread in started:
        server.should_exit = True
        thread.join(20)


def png(image: Image.Image | None = None) -> bytes:
    """Return an image as the bytes of a PNG."""
    encoded = io.BytesIO()
    (image or draw_photo(3, (96, 72))).save(encoded, "PNG")
    return encoded.getvalue()
