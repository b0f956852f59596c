"""Search in what an engine holds, without the index that filled it: as the index itself would be searched."""

import re
from pathlib import Path

import numpy as np
import psycopg
import pytest
import torch

from local_qdrant import LOCAL, local_qdrant  # noqa: F401 - a fixture of all tests here
from openvse.errors import DataError, EngineError, IndexFormatError, MissingItemError
from openvse.indexing import Index
from openvse.indexing.manifest import read_manifest
from openvse.search import Page, Query, SearchEngine
from openvse.similarities import SetMax
from openvse.stores import EngineAddress
from openvse.stores.following import plan_engine, update_engine
from openvse.types import EmbeddingSet
from openvse_engines.catalogue import read_address
from openvse_engines.pgvector import PgvectorStore
from tests.naming import names, refusal
from tests.search.engine_helpers import name_of, unit, write

pytestmark = pytest.mark.filterwarnings("ignore:Local mode performs exact", "ignore:Payload indexes")


class Words:
    """A model whose sentences are numbers of random embeddings."""

    fingerprint = "random-1"
    similarity = SetMax()
    calibration = None

    def encode_text(self, captions: list[str]) -> EmbeddingSet:
        vectors = np.concatenate([unit(1, seed=sum(map(ord, caption))) for caption in captions])
        return EmbeddingSet(torch.from_numpy(vectors), torch.ones(len(captions), 1, dtype=torch.bool))

    def encode_image(self, images: list[str]) -> EmbeddingSet:
        return self.encode_text(images)

    def score(self, images: EmbeddingSet, texts: EmbeddingSet) -> torch.Tensor:
        return self.similarity(images, texts)


@pytest.fixture(params=["qdrant", "pgvector"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def filled(folder: Path, name: str, request: pytest.FixtureRequest, num_embeddings: int = 1) -> EngineAddress:
    """Fill an engine from an index of random embeddings."""
    url = {"pgvector": "postgres"}.get(name)
    address = str(request.getfixturevalue(url)) if url else LOCAL
    write(folder, range(60), unit(60, num_embeddings))
    plan_engine(folder, address or name).note(folder)
    update_engine(folder, url=address)
    request.addfinalizer(lambda: plan_engine(folder, "exact").note(folder))
    place = (read_manifest(folder).engine or {})["place"]
    return read_address(f"{address}&table={place}" if name == "pgvector" else f"{LOCAL}/{place}")


@pytest.mark.medium
@pytest.mark.parametrize("num_embeddings", [1, 3])
def test_it_finds_what_the_index_finds(
    name: str, num_embeddings: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder, model = tmp_path / "index", Words()
    address = filled(folder, name, request, num_embeddings)
    exact = SearchEngine(model, Index.open(folder), engine="exact")
    engine = SearchEngine(model, address)
    assert len(engine.catalogue) == 60
    assert engine.note.roots[0].path == "/photos" and engine.note.embeddings == num_embeddings
    asked = [Query("a dog"), Query("a cat"), Query(like=name_of(7)), Query("a dog", avoid=("a cat",))]
    for where in [(), ("year >= 2003", "kind = image"), ("path ~ 0001*",), ("date >= 2001-09-09T12:00",)]:
        found, expected = (
            [answer.hits for answer in each.answer(asked, Page(top_k=5, where=where))] for each in (engine, exact)
        )
        assert [[hit.id for hit in hits] for hits in found] == [[hit.id for hit in hits] for hits in expected]
        assert [[hit.rank for hit in hits] for hits in found] == [[hit.rank for hit in hits] for hits in expected]
        for mine, others in zip(found, expected, strict=True):
            assert [hit.score for hit in mine] == pytest.approx([hit.score for hit in others], abs=1e-6)
            assert [hit.path for hit in mine] == [hit.path for hit in others]
    assert engine.answer("a dog", Page(where=("year = 1900",)))[0].hits == []
    assert 0 < engine.answer("a dog", Page(where=("year = 2003",)))[0].searched < 60
    nothing, every, other = (
        engine.answer("a dog", Page(where=(where,)))[0] for where in ("yaer contains 2003", "yaer != 2003", "big = foo")
    )
    assert (nothing.searched, len(every.hits), other.searched) == (0, 10, 0)
    assert re.search("60.*yaer.*year", nothing.warnings[0])
    assert names(every.warnings[0], "yaer")
    assert names(other.warnings[0], "big", "foo")
    assert names(refusal(MissingItemError, lambda: engine.search(Query(like="nothing"))), "nothing")
    refusal(MissingItemError, lambda: engine.search(Query(like="half \udcff")))
    engine.close()


@pytest.mark.medium
def test_what_another_openvse_sent_is_sent_again(
    name: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Payloads of another form would answer conditions with less than there is, and not say so."""
    folder = tmp_path / "index"
    with monkeypatch.context() as before:
        for module in ("base", "following"):
            before.setattr(f"openvse.stores.{module}.PAYLOADS", 1)
        address = filled(folder, name, request)
    url = address.server
    monkeypatch.setenv("OPENVSE_ENGINE_URL", url)
    for place in (address, Index.open(folder)):
        assert names(refusal(EngineError, SearchEngine, Words(), place), "openvse index")
    assert update_engine(folder, url=url).put == 60
    for place in (address, Index.open(folder)):
        with SearchEngine(Words(), place) as engine:
            assert len(engine.answer("a dog", Page(60, where=("camera = böse X100",)))[0].hits) == 40
    assert update_engine(folder, url=url).put == 0


@pytest.mark.medium
def test_more_candidates_than_are_remembered(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openvse_engines.catalogue._REMEMBERED", 5)
    folder = tmp_path / "index"
    address = filled(folder, "qdrant", request)
    with SearchEngine(Words(), f"{LOCAL}/{address.name}") as engine:
        hits = engine.search(["a dog", "a cat"], 40)
    exact = SearchEngine(Words(), Index.open(folder), engine="exact")
    assert [[hit.id for hit in row] for row in hits] == [
        [hit.id for hit in answer.hits] for answer in exact.answer(["a dog", "a cat"], Page(40, only="similarity"))
    ]


@pytest.mark.medium
def test_it_says_what_does_not_fit(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder = tmp_path / "index"
    address = filled(folder, "qdrant", request)
    other = Words()
    other.fingerprint = "random-2"
    assert names(refusal(IndexFormatError, SearchEngine, other, address), "random-1", "random-2")
    with pytest.raises(EngineError, match="openvse_0123456789ab"):
        SearchEngine(Words(), f"{LOCAL}/openvse_0123456789ab")


@pytest.mark.medium
def test_an_engine_alone_has_no_words(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder = tmp_path / "index"
    engine = SearchEngine(Words(), filled(folder, "qdrant", request))
    assert len(engine.search("a dog", 3)) == 3
    assert engine.search("00005", 3) == engine.answer("00005", Page(3, only="similarity"))[0].hits
    with pytest.raises(DataError, match="only=words"):  # as a store keeps none
        engine.answer("00005", Page(only="words"))
    assert SearchEngine(Words(), Index.open(folder)).search("00005", 1)[0].by != "similarity"
    engine.close()


@pytest.mark.medium
@pytest.mark.parametrize(("given", "taken"), [("64MB", "512MB"), ("1GB", "1GB")])
def test_a_graph_gets_room_and_keeps_what_it_has(postgres: str, given: str, taken: str) -> None:
    url = f"{postgres}&options=-c%20maintenance_work_mem%3D{given}"
    store = PgvectorStore(EngineAddress("pgvector", "some_points", url, given=url), 1, 4, create=True)
    store.finish()
    assert store._connection.execute("SHOW maintenance_work_mem").fetchone() == (taken,)
    store.drop()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("word", "url", "place"),
    [
        ("qdrant://host/openvse_0123456789ab", "http://host:6333", "openvse_0123456789ab"),
        ("qdrants://host:1/openvse_0123456789ab", "https://host:1", "openvse_0123456789ab"),
        ("https://key@host/q/openvse_0123456789ab/", "https://key@host/q", "openvse_0123456789ab"),
        (
            "postgresql://me:secret@host/photos?table=openvse_0123456789ab&sslmode=require",
            "postgresql://me:secret@host/photos?sslmode=require",
            "openvse_0123456789ab",
        ),
        ("postgresql:///photos?table=openvse_0123456789ab", "postgresql:///photos", "openvse_0123456789ab"),
    ],
)
def test_words_name_engines(word: str, url: str, place: str) -> None:
    read = read_address(word)
    assert (read.given, read.name) == (url, place)
    assert "secret" not in str(read)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("mysql://me:secret@host/x", "mysql"),
        ("qdrant://host:port/", "qdrant://"),
        ("qdrant://host/photos", "photos.*openvse_"),
        ("qdrant://127.0.0.1:1", "http://127.0.0.1:1 "),
    ],
)
def test_words_that_name_none(word: str, message: str) -> None:
    with pytest.raises(EngineError, match=message) as raised:
        read_address(word)
    assert "secret" not in str(raised.value)


ODD_ANSWERS = (
    "ALTER TABLE {0} ALTER item TYPE text USING 'x'",
    "ALTER TABLE {0} ALTER item TYPE numeric USING 1e30",
    "ALTER TABLE {0} ALTER item DROP NOT NULL; UPDATE {0} SET item = NULL",
    "UPDATE {0} SET payload = '[1]'",
    "UPDATE {0} SET payload = (repeat('[', 5000) || repeat(']', 5000))::jsonb",
    "UPDATE {0} SET payload = jsonb_build_object('path', item, 'date', 1e300)",
    "UPDATE {0} SET payload = jsonb_build_object('path', item, 'size', 1e30)",
    "UPDATE {0} SET payload = jsonb_build_object('path', item, 'meta', repeat('9', 5000)::jsonb)",
    "ALTER TABLE {0} ALTER embedding TYPE vector; UPDATE {0} SET embedding = '[1,2]'",
    "ALTER TABLE {0} ALTER embedding DROP NOT NULL; UPDATE {0} SET embedding = NULL",
    """COMMENT ON TABLE {0} IS '{{"payloads": 2, "roots": [], "model": "a", "holds": "", "created": "", "dim": 1e400, '
    '"embeddings": 0}}'""",
)


@pytest.mark.medium
def test_whatever_a_server_answers_is_refused_in_one_line(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    for number, odd in enumerate(ODD_ANSWERS):
        address = filled(tmp_path / str(number), "pgvector", request)
        with psycopg.connect(address.server, autocommit=True) as connection:
            connection.execute(f"DROP INDEX IF EXISTS {address.name}_graph")
            connection.execute(odd.format(address.name))  # type: ignore[arg-type]

        def search(address: EngineAddress = address) -> None:
            with SearchEngine(Words(), address) as engine:
                engine.search("a dog", where=("year > 2003",))

        refusal(EngineError, search)
