"""Choosing an engine: what the index notes of it, what it must not note, and what is refused."""

import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_helpers import engine_of, opened, queries, unit, write

from colour_model import ColourModel
from openvse.errors import EngineError
from openvse.indexing import Index
from openvse.indexing.manifest import read_manifest
from openvse.search import SearchEngine
from openvse.search.catalogue import open_searcher
from openvse.search.exact import EmbeddedQueries, ExactSearch
from openvse.search.proposing import StoreSearch
from openvse.stores import STORES, EngineAddress, StoreKind
from openvse.stores.choice import public_url, secrets_in, shown_url, without_secrets
from openvse.stores.following import plan_engine, update_engine
from openvse.stores.int8 import Int8Store
from openvse_engines.catalogue import read_address
from tests.failures import Failures
from tests.naming import names, refusal

SECRET = "hunter-2%40x"
URLS = {
    "https://cloud.example:6333/path": [],
    f"https://me:{SECRET}@cloud.example:6333": [SECRET, "hunter-2@x"],
    "https://cloud.example?api_key=abc&timeout=3": ["abc"],
    f"postgresql://me:{SECRET}@db.example:5432/photos?sslmode=require&password=abc": [SECRET, "hunter-2@x", "abc"],
    "postgresql://postgres:@/postgres?host=/tmp/some/folder": [],
    "postgresql:///photos?passfile=/etc/pass": [],
}


def test_a_url_loses_its_secrets_and_nothing_else() -> None:
    failures = Failures()
    for url, secrets in URLS.items():
        with failures.of(url):
            public = public_url(url)
            assert secrets_in(url) == secrets
            assert secrets_in(public) == []
            assert not any(secret in public for secret in secrets)
            assert "***" in without_secrets(f"cannot reach {url}", url) or not secrets
            assert not any(secret in without_secrets(f"cannot reach {url}", url) for secret in secrets)
            if not secrets:
                assert public.replace(":@", "@") == url.replace(":@", "@")
            assert public_url(public) == public
    assert not failures, failures


def note(folder: Path, address: EngineAddress) -> None:
    """Note the engine of an index, as it is where a server has gone away since."""
    replace(read_manifest(folder), engine=address.noted()).write(folder)


def test_secrets_are_neither_in_the_index_nor_in_messages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "index", range(5), unit(5))
    url = "postgresql://me:hunter2@127.0.0.1:9/photos?password=hunter3"
    with pytest.raises(EngineError, match="127.0.0.1.*9/photos") as caught:
        plan_engine(tmp_path / "index", url).note(tmp_path / "index")
    assert read_manifest(tmp_path / "index").engine is None
    note(tmp_path / "index", EngineAddress.new(tmp_path / "index", "pgvector", url))
    assert names(refusal(EngineError, update_engine, tmp_path / "index", url=url), "127.0.0.1", "9/photos")
    told = str(caught.value) + caplog.text
    told += "".join(path.read_bytes().decode("latin-1") for path in (tmp_path / "index").iterdir())
    assert "hunter" not in told
    assert "\n" not in str(caught.value)


def test_a_server_that_only_an_index_names_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index of somebody else may name any server, also one that only this machine reaches."""
    from openvse_engines import pgvector, qdrant

    keys: list[object] = []

    class Server(qdrant.QdrantClient):
        def __init__(self, *, api_key: str | None, **_: object) -> None:
            keys.append(api_key)

        def collection_exists(self, collection_name: str, **_: object) -> bool:
            return True

    monkeypatch.setattr(qdrant, "QdrantClient", Server)
    monkeypatch.setattr(pgvector.psycopg, "connect", lambda url, **_: keys.append(url))
    monkeypatch.setenv("OPENVSE_QDRANT_API_KEY", "mine")
    write(tmp_path, range(3), unit(3))
    noted = {"name": "qdrant", "url": "https://one.example:6333", "place": "openvse_00000000"}
    for engine, url in (
        ("qdrant", noted["url"]),
        ("qdrant", "http://localhost:6333"),
        ("pgvector", "postgresql:///photos?service=mine"),
        ("pgvector", "postgresql://me@one.example/photos?passfile=/etc/hostname"),
    ):
        replace(read_manifest(tmp_path), engine=noted | {"name": engine, "url": url}).write(tmp_path)
        index = Index.open(tmp_path)
        for asks in (
            lambda index=index: open_searcher(index, ExactSearch(index.vector_files)),
            lambda engine=engine: plan_engine(tmp_path, engine),
            lambda: plan_engine(tmp_path),
            lambda: update_engine(tmp_path),
        ):
            assert names(refusal(EngineError, asks), "OPENVSE_ENGINE_URL")
        assert open_searcher(index, ExactSearch(index.vector_files), engine="exact").name == "exact"
    assert not keys
    qdrant.QdrantStore(EngineAddress.of(tmp_path, noted, noted["url"]), 1, 4)
    monkeypatch.setenv("OPENVSE_ENGINE_URL", noted["url"])
    qdrant.QdrantStore(EngineAddress.of(tmp_path, noted), 1, 4)
    assert keys == ["mine", "mine"]


NO_URLS = [
    "postgresql://u:a/Sup3rS3cret@host/db",
    "postgresql://u:a?Sup3rS3cret@host/db",
    "postgresql://u:a#Sup3rS3cret@host/db",
    "postgresql://u:Sup3rS3cret@host:a/db",
    "https://Sup3rS3cret@host",
    "http://[Sup3rS3cret",
]


def test_a_url_that_is_none_shows_no_secret() -> None:
    failures = Failures()
    for url in NO_URLS:
        with failures.of(url):
            assert "Sup3r" not in shown_url(url)
            if not url.startswith("https"):
                assert "Sup3r" not in refusal(EngineError, read_address, url)
    assert not failures, failures


def test_the_environment_gives_the_secret_of_the_same_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "https://:hunter2@one.example:6333"
    address = EngineAddress.new(Path(), "qdrant", secret)
    assert (address.url, address.given) == ("https://one.example:6333", secret)
    noted = address.noted()
    assert "hunter2" not in str(noted) + str(address) + repr(address)
    assert EngineAddress.of(Path(), noted) == address and EngineAddress.of(Path(), noted).given == ""
    monkeypatch.setenv("OPENVSE_ENGINE_URL", secret)
    assert EngineAddress.of(Path(), noted) == address and EngineAddress.of(Path(), noted).given == secret
    monkeypatch.setenv("OPENVSE_ENGINE_URL", "https://:hunter2@two.example:6333")
    assert EngineAddress.of(Path(), noted) == address and EngineAddress.of(Path(), noted).given == ""


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("faiss", "faiss.*exact, int8, pgvector, qdrant"),
        ("qdrant", "URL.*http://localhost:6333"),
        ("postgresql://[hunter2", "URL"),
        ("https://me:hunter2/x@one.example", "URL"),
    ],
)
def test_choices_that_are_refused(tmp_path: Path, engine: str, message: str) -> None:
    write(tmp_path, range(3), unit(3))
    with pytest.raises(EngineError, match=message) as caught:
        plan_engine(tmp_path, engine).note(tmp_path)
    assert "hunter2" not in str(caught.value)
    assert read_manifest(tmp_path).engine is None


def test_a_model_whose_similarity_is_not_an_inner_product_is_refused(tmp_path: Path) -> None:
    model = ColourModel(fingerprint="random-1", indexable=False)
    write(tmp_path, range(3), unit(3))
    assert names(refusal(EngineError, lambda: plan_engine(tmp_path, "int8", model=model).note(tmp_path)), "ColourModel")
    engine_of(tmp_path, "int8")
    refusal(EngineError, lambda: SearchEngine(model, Index.open(tmp_path)))
    SearchEngine(model, Index.open(tmp_path), engine="exact")


def test_a_search_takes_the_engine_of_the_index(tmp_path: Path) -> None:
    model = ColourModel(fingerprint="random-1")
    write(tmp_path, range(3), unit(3))
    engine_of(tmp_path, "int8")
    index = Index.open(tmp_path)
    assert isinstance(SearchEngine(model, index).catalogue.searcher, StoreSearch)
    assert SearchEngine(model, index, engine="exact").catalogue.searcher.name == "exact"
    refusal(EngineError, SearchEngine, model, index, engine="qdrant")


def test_the_exact_engine_leaves_the_manifest_as_it_was(tmp_path: Path) -> None:
    write(tmp_path, range(3), unit(3))
    before = (tmp_path / "index.json").read_text()
    engine_of(tmp_path, "int8")
    assert '"int8"' in (tmp_path / "index.json").read_text()
    plan_engine(tmp_path, "exact").note(tmp_path)
    assert (tmp_path / "index.json").read_text() == before


def test_a_note_of_a_later_openvse_is_refused_in_one_line(tmp_path: Path) -> None:
    for noted in ({"name": "hyperspace", "place": "openvse_012345678901"}, {"name": "int8", "place": "../.."}):
        refusal(EngineError, EngineAddress.of, tmp_path, noted)


@pytest.mark.medium
def test_eight_bits_are_compacted(tmp_path: Path) -> None:
    write(tmp_path, range(30), unit(30))
    engine_of(tmp_path, "int8")
    place = EngineAddress.of(tmp_path, read_manifest(tmp_path).engine).path
    assert {path.name for path in place.iterdir()} == {"keys-0.i64", "scales-0.f32", "codes-0.i8"}
    write(tmp_path, [], unit(0), gone=range(20))
    update_engine(tmp_path)
    assert {path.name for path in place.iterdir()} == {"keys-1.i64", "scales-1.f32", "codes-1.i8"}
    found, exact = opened(tmp_path)
    assert found.search(queries(2), 5)[1].tolist() == exact.search(queries(2), 5)[1].tolist()


@pytest.mark.medium
@pytest.mark.parametrize("damage", ["missing", "a file", "no codes", "one code", "no scales"])
def test_a_damaged_folder_costs_a_warning_and_never_the_search(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, range(30), unit(30))
    _, exact = engine_of(tmp_path, "int8")
    place = EngineAddress.of(tmp_path, read_manifest(tmp_path).engine).path
    if damage in ("missing", "a file"):
        shutil.rmtree(place)
    if damage == "a file":
        place.write_bytes(b"x")
    if damage == "one code":
        (place / "codes-0.i8").write_bytes(b"x")
    if damage.startswith("no "):
        next(place.glob(f"{damage[3:]}-0.*")).unlink()
    for engine in (None, "int8"):
        caplog.clear()
        found = open_searcher(Index.open(tmp_path), exact, engine=engine)
        assert isinstance(found, ExactSearch) and len(caplog.records) == 1
        assert found.search(queries(2), 5)[1].tolist() == exact.search(queries(2), 5)[1].tolist()
    if damage == "a file":
        place.unlink()
    assert update_engine(tmp_path).put == 30
    found = opened(tmp_path)[0]
    assert isinstance(found, StoreSearch) and found.num_missing == 0


@pytest.mark.medium
@pytest.mark.parametrize("name", ["codes-0.i8", "scales-0.f32", "keys-0.i64"])
def test_half_a_record_of_eight_bits_is_cut(tmp_path: Path, name: str) -> None:
    """A process that is killed, or a full disk, leaves part of what it appended."""
    write(tmp_path, range(30), unit(30))
    engine_of(tmp_path, "int8")
    place = EngineAddress.of(tmp_path, read_manifest(tmp_path).engine).path
    with (place / name).open("ab") as file:
        file.write(b"abc")
    found, exact = opened(tmp_path)
    assert isinstance(found, StoreSearch) and found.num_missing == 0
    assert found.search(queries(2), 5)[1].tolist() == exact.search(queries(2), 5)[1].tolist()
    write(tmp_path, range(30, 40), unit(10, seed=9))
    assert update_engine(tmp_path).put == 10
    found, exact = opened(tmp_path)
    assert found.search(queries(9), 40)[1].tolist() == exact.search(queries(9), 40)[1].tolist()


@pytest.mark.medium
@pytest.mark.parametrize(("before", "after"), [("int8", "exact"), ("exact", "int8"), ("int8", "plain")])
def test_a_change_of_engine_that_fails_leaves_a_searchable_index(
    tmp_path: Path, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new place is made before the index names it, and the old data go after that."""
    monkeypatch.setattr(STORES, "_parts", {**STORES._parts, "plain": StoreKind(Int8Store)})
    write(tmp_path, range(30), unit(30))
    engine_of(tmp_path, before)
    noted = read_manifest(tmp_path).engine

    def refuse(self: object, folder: Path, name: str = "index.json") -> None:
        named = [choice for path in tmp_path.glob("openvse_*") if path.is_dir() for choice in [path.name]]
        assert before == "exact" or (noted or {})["place"] in named
        assert after == "exact" or len(named) == 1 + (before != "exact")
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("openvse.indexing.manifest.IndexManifest.write", refuse)
        with pytest.raises(OSError, match="the disk is full"):
            plan_engine(tmp_path, after).note(tmp_path)
    assert read_manifest(tmp_path).engine == noted
    assert opened(tmp_path)[0].name == before
    plan_engine(tmp_path, after).note(tmp_path)
    update_engine(tmp_path)
    assert opened(tmp_path)[0].name == after
    named = {(read_manifest(tmp_path).engine or {}).get("place")} - {None}
    assert {path.name for path in tmp_path.glob("openvse_*") if path.is_dir()} == named


@pytest.mark.medium
def test_eight_bits_find_the_best_of_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best come first, so that later blocks have fewer good ones than are wanted."""
    monkeypatch.setattr("openvse.stores.int8._BLOCK", 64)
    asked = queries(3)
    vectors = unit(1000)
    write(tmp_path, range(1000), vectors[np.argsort(-(vectors[:, 0] @ asked.parts.vectors[0, 0]))])
    found, exact = engine_of(tmp_path, "int8")
    for some in (EmbeddedQueries(asked.parts[:1], None), asked):
        assert found.search(some, 12)[1].tolist() == exact.search(some, 12)[1].tolist()


@pytest.mark.medium
def test_a_server_that_is_not_there_is_said_in_lines_of_our_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's own warnings name files of the client, which say nothing to a user."""
    url = "http://me:secret@127.0.0.1:1"
    write(tmp_path, range(3), unit(3))
    note(tmp_path, EngineAddress.new(tmp_path, "qdrant", url))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert names(refusal(EngineError, update_engine, tmp_path, url=url), "127.0.0.1", "1")
        assert not caplog.records
        place = EngineAddress.of(tmp_path, read_manifest(tmp_path).engine).name
        monkeypatch.setenv("OPENVSE_ENGINE_URL", url)
        plan_engine(tmp_path, "exact").note(tmp_path)
    (said,) = (record.getMessage() for record in caplog.records)
    assert names(said, "qdrant", place)
    assert "secret" not in said


@pytest.mark.medium
def test_a_key_that_is_not_encrypted_is_said(caplog: pytest.LogCaptureFixture) -> None:
    from openvse_engines import qdrant

    with pytest.raises(EngineError, match="qdrant.invalid.*1"):
        qdrant.QdrantStore(EngineAddress("qdrant", "openvse_00000000", given="http://me:secret@qdrant.invalid:1"), 1, 4)
    (said,) = (record.getMessage() for record in caplog.records)
    assert names(said, "http://qdrant.invalid:1", "https")
