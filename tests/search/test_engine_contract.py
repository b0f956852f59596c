"""The contract of all engines: what they find, in which order, and that every change reaches them."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from engine_helpers import DIM, engine_of, opened, queries, unit, write

from local_qdrant import LOCAL, local_qdrant  # noqa: F401 - a fixture of all tests here
from openvse.errors import EngineError
from openvse.indexing import Index
from openvse.indexing.conditions import allowed_items, parse_condition
from openvse.runtime.arrays import ArraySet
from openvse.search.exact import EmbeddedQueries, ExactSearch
from openvse.search.proposing import StoreSearch
from openvse.stores import STORES, Within
from openvse.stores.choice import EngineAddress
from openvse.stores.following import plan_engine, update_engine
from tests.naming import names, refusal

pytestmark = pytest.mark.filterwarnings("ignore:Local mode performs exact", "ignore:Payload indexes")


@pytest.fixture(params=["exact", *STORES.names()])
def engine(request: pytest.FixtureRequest) -> tuple[str, str | None]:
    """The name of an engine, and the URL of its server."""
    name = request.param
    if name == "pgvector":
        return name, request.getfixturevalue("postgres")
    return name, os.environ.get("OPENVSE_QDRANT_URL", LOCAL) if name == "qdrant" else None


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for an index, whose engine is removed at the end."""
    yield tmp_path / "index"
    if (tmp_path / "index" / "index.json").is_file():
        plan_engine(tmp_path / "index", "exact").note(tmp_path / "index")


@pytest.fixture(autouse=True)
def no_item_is_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openvse.search.proposing.FEW", 0)


def same(found: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray]) -> None:
    assert found[1].tolist() == expected[1].tolist()
    assert found[0].tolist() == expected[0].tolist()


@pytest.mark.medium
@pytest.mark.parametrize(("num_embeddings", "asked"), [(1, 1), (3, 2)])
def test_finds_what_the_exact_engine_finds(
    engine: tuple[str, str | None], folder: Path, num_embeddings: int, asked: int
) -> None:
    """Of several embeddings, the best pair decides, as in a naive loop."""
    vectors = unit(150, num_embeddings)
    write(folder, range(150), vectors)
    found, exact = engine_of(folder, *engine)
    assert found.name == engine[0]
    some = queries(5, asked)
    for top_k in (1, 10, 400):
        same(found.search(some, top_k), exact.search(some, top_k))
    scores, positions = found.search(some, 10)
    for query, row, places in zip(range(5), scores.tolist(), positions.tolist(), strict=True):
        given = some.parts.vectors[query][some.parts.mask[query]]
        naive = [max(float(v @ q) for v in item for q in given) for item in vectors]
        assert places == sorted(range(150), key=lambda place: -naive[place])[:10]
        assert row == pytest.approx(sorted(naive, reverse=True)[:10], abs=1e-5)


@pytest.mark.medium
def test_equal_scores_come_in_the_order_of_the_ids(engine: tuple[str, str | None], folder: Path) -> None:
    vectors = np.concatenate([unit(40), np.repeat(queries(1).parts.vectors, 8, axis=0)])
    order = np.random.default_rng(0).permutation(48)
    write(folder, order.tolist(), vectors[order])
    found, _ = engine_of(folder, *engine)
    assert found.search(queries(1), 8)[1].tolist() == [list(range(40, 48))]


@pytest.mark.medium
def test_more_equal_scores_than_a_search_takes(engine: tuple[str, str | None], folder: Path) -> None:
    """A store may name any of them first."""
    order = np.random.default_rng(0).permutation(100)
    write(folder, order.tolist(), np.repeat(queries(1).parts.vectors, 100, axis=0))
    found, _ = engine_of(folder, *engine)
    assert found.search(queries(1), 3)[1].tolist() == [[0, 1, 2]]


CONDITIONS = [
    "kind = clip",
    "kind != clip",
    "size = 7",
    "size >= 40",
    "size < 40",
    "date >= 2001-09-09T12:00",
    "date < 2001-09-09T12:00",
    "date = 2001",
    "year = 2003",
    "year >= 2004",
    "year < 2002",
    "tags = t1",
    "tags != t1",
    "tags contains now",
    "path ~ 0001*",
    "broken = ab",
    "big > 5",
    "absent = x",
    "absent = 1e999",
    "tags = T1",
    "tags = Now",
    "camera = böse x100",
    "camera ~ BOSE*",
    "camera = X100 \uff29\uff29",
    "flag = TRUE",
    "flag = false",
    "made = 2024-05",
    "made > 2024-05",
    "made <= 2023",
]


@pytest.mark.medium
def test_conditions_reach_the_engine(engine: tuple[str, str | None], folder: Path) -> None:
    write(folder, range(90), unit(90))
    found, exact = engine_of(folder, *engine)
    index = Index.open(folder)
    for text in [*CONDITIONS, "kind = clip;year >= 2003;size > 20"]:
        where = [parse_condition(each) for each in text.split(";")]
        allowed = allowed_items(index, where)
        answer = found.search(queries(3), 6, allowed=allowed, where=where)
        same(answer, exact.search(queries(3), 6, allowed=allowed))
        if not isinstance(found, StoreSearch):
            continue
        # What the store itself finds: everything that fulfils the conditions, and nothing else where it has the words.
        keys = np.sort(index.table.keys[allowed])
        proposed = found._store.nearest(queries(1).parts.vectors[0], 90, Within(tuple(where), keys))[0]
        assert set(keys.tolist()) <= set(proposed.tolist()), text
        if text in ("kind = clip", "size >= 40", "tags = t1") or ";" in text:
            few = index.table.keys[allowed_items(index, [parse_condition("kind = clip")])] if ";" in text else keys
            assert set(proposed.tolist()) <= set(few.tolist()), text


@pytest.mark.medium
def test_changes_reach_the_engine_and_are_right_before_they_do(
    engine: tuple[str, str | None], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, url = engine
    write(folder, range(60), unit(60, 2))
    engine_of(folder, name, url)
    # Five change, ten are gone, twenty are new.
    write(folder, [*range(5), *range(60, 80)], unit(25, 2, seed=5), gone=range(30, 40))
    caplog.clear()
    behind, exact = opened(folder, url)
    same(behind.search(queries(4, 2), 12), exact.search(queries(4, 2), 12))
    if isinstance(behind, StoreSearch):
        assert behind.num_missing == 25
        assert re.search("25.*70", caplog.text)
        behind._store.close()
    report = update_engine(folder, url=url)
    if name == "exact":
        return
    assert (report.put, report.removed) == (25, 10)
    found, exact = opened(folder, url)
    assert isinstance(found, StoreSearch)
    assert found.num_missing == 0
    assert found._store.num_points() == 140
    same(found.search(queries(4, 2), 12), exact.search(queries(4, 2), 12))
    found._store.close()
    again = update_engine(folder, url=url)
    assert (again.put, again.removed) == (0, 0)


@pytest.mark.medium
def test_what_the_user_says_of_an_item_reaches_the_engine(engine: tuple[str, str | None], folder: Path) -> None:
    name, url = engine
    write(folder, range(20), unit(20))
    engine_of(folder, name, url)
    from openvse.indexing.database import Database
    from openvse.indexing.manifest import read_manifest

    with Database(folder / read_manifest(folder).items, write=True) as database, database.transaction():
        database.describe([('{"year": 1815}', "{}", 4)])  # the key of number 3
    assert update_engine(folder, url=url).put == (0 if name == "exact" else 1)
    found, _ = opened(folder, url)
    where = [parse_condition("year = 1815")]
    allowed = allowed_items(Index.open(folder), where)
    assert found.search(queries(1), 5, allowed=allowed, where=where)[1].tolist() == [[3]]


@pytest.mark.medium
@pytest.mark.parametrize("num_embeddings", [1, 2])
def test_queries_of_several_parts(engine: tuple[str, str | None], folder: Path, num_embeddings: int) -> None:
    write(folder, range(80), unit(80, num_embeddings))
    found, exact = engine_of(folder, *engine)
    asked = queries(3, weights=np.array([[0.5, 0.5, -0.5], [1.0, 0.0, -0.2]], np.float32))
    same(found.search(asked, 7), exact.search(asked, 7))


@pytest.mark.medium
def test_an_interrupted_update_is_made_good(
    engine: tuple[str, str | None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, url = engine
    if name == "exact":
        assert update_engine.__name__  # it has nothing to be interrupted
        return
    write(folder, range(30), unit(30))
    plan_engine(folder, url or name).note(folder)
    monkeypatch.setattr("openvse.stores.following._ITEMS", 8)

    def stop(done: int, total: int) -> None:
        if done == 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update_engine(folder, url=url, progress=stop)
    write(folder, [], unit(0), gone=range(4))  # were put, but the state says so of nothing
    update_engine(folder, url=url)
    found, exact = opened(folder, url)
    assert isinstance(found, StoreSearch)
    assert found.num_missing == 0
    assert found._store.num_points() == 26
    same(found.search(queries(3), 5), exact.search(queries(3), 5))


@pytest.mark.medium
def test_a_place_that_is_gone_is_said_and_made_again(engine: tuple[str, str | None], folder: Path) -> None:
    name, url = engine
    write(folder, range(30), unit(30))
    found, _ = engine_of(folder, name, url)
    if not isinstance(found, StoreSearch):
        return
    found._store.drop()
    found._store.close()
    if url:
        assert names(refusal(EngineError, opened, folder, url), "'openvse index'")
    else:
        assert isinstance(opened(folder)[0], ExactSearch)
    assert update_engine(folder, url=url).put == 30


@pytest.mark.medium
def test_another_engine_takes_the_place_of_one_and_removes_its_data(
    engine: tuple[str, str | None], folder: Path
) -> None:
    name, url = engine
    write(folder, range(30), unit(30))
    found, _ = engine_of(folder, name, url)
    before = EngineAddress.of(folder, Index.open(folder).manifest.engine)
    assert before.engine == name
    del found
    assert plan_engine(folder, "int8" if name != "int8" else "exact").note(folder).engine != name
    assert name == "exact" or list(folder.glob(f"{before.name}*")) == []
    update_engine(folder)
    assert isinstance(opened(folder)[0], StoreSearch) == (name != "int8")


@pytest.mark.medium
def test_a_query_that_is_not_finite_is_refused(engine: tuple[str, str | None], folder: Path) -> None:
    from openvse.errors import ModelError

    write(folder, range(10), unit(10))
    found, _ = engine_of(folder, *engine)
    bad = ArraySet.full(np.full((1, 1, DIM), np.nan, np.float32))
    assert names(refusal(ModelError, lambda: found.search(EmbeddedQueries(bad, None), 3)), "NaN")
