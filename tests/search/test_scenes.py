"""Images that are nearly the same are one hit with a count; pages, conditions and thresholds stay right."""

import numpy as np
import pytest
from PIL import Image

from colour_model import COLOURS, ColourModel
from openvse.indexing import Index, build_index
from openvse.search import Page, Query, SearchEngine
from openvse.search.exact import are_same, first_of_scenes, unit_vectors


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> SearchEngine:
    """Search five takes of a red scene, three of a green one, and a blue and a white image."""
    folder = tmp_path_factory.mktemp("scenes")
    (folder / "photos").mkdir()
    for colour, count in (("red", 5), ("green", 3), ("blue", 1), ("white", 1)):
        for take in range(count):
            shade = tuple(value + take for value in COLOURS[colour])
            Image.new("RGB", (32, 32), shade).save(folder / "photos" / f"{colour}{take}.png")
    model = ColourModel()
    build_index(model, folder / "photos", folder / "index")
    return SearchEngine(model, Index.open(folder / "index"))


def listed(engine: SearchEngine, query: str | Query, page: Page) -> list[tuple[str, int, int]]:
    return [(hit.id.removesuffix(".png")[:-1], hit.rank, hit.alike) for hit in engine.answer(query, page)[0].hits]


def test_a_scene_is_one_hit_with_a_count(engine: SearchEngine) -> None:
    hits = listed(engine, "red", Page(one_per="scene"))
    assert hits[0] == ("red", 1, 4)
    assert {name: alike for name, _, alike in hits} == {"red": 4, "green": 2, "blue": 0, "white": 0}
    assert [hit.alike for hit in engine.answer("red")[0].hits] == [0] * 10


def test_pages_follow_each_other(engine: SearchEngine) -> None:
    whole = listed(engine, "green", Page(one_per="scene"))
    pages = [engine.answer("green", Page(1, skip, one_per="scene"))[0] for skip in range(5)]
    assert [hit.rank for page in pages for hit in page.hits] == [1, 2, 3, 4]
    assert [(hit.id.removesuffix(".png")[:-1], hit.rank, hit.alike) for page in pages for hit in page.hits] == whole
    assert [page.more for page in pages] == [True, True, True, False, False]


def test_conditions_and_thresholds_hold(engine: SearchEngine) -> None:
    assert listed(engine, "red", Page(one_per="scene", where=("path ~ red[0-2]*",))) == [("red", 1, 2)]
    assert listed(engine, "red", Page(one_per="scene", min_score=0.9)) == [("red", 1, 4)]


def test_the_image_that_is_asked_with_stands_for_none(engine: SearchEngine) -> None:
    hits = listed(engine, Query(like="red0.png"), Page(one_per="scene"))
    assert [name for name, _, _ in hits].count("red") == 1 and len(hits) == 4


def test_no_chain_joins_what_is_not_alike() -> None:
    angles = np.deg2rad([0.0, 8.0, 16.0, 24.0])
    vectors = unit_vectors(np.stack([np.cos(angles), np.sin(angles)], axis=1)[:, None], are_gaussians=False)
    assert are_same(vectors, vectors).sum() == 4 + 2 * 3
    assert first_of_scenes(vectors, 4).tolist() == [0, 2]
    assert first_of_scenes(vectors, 1).tolist() == [0]
