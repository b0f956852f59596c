"""``openvse search``: queries of several parts, conditions, pages, and output for other programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.naming import names

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def index(trained: Path) -> Path:
    return trained / "index"


def found(works, index: Path, *words: object) -> list[tuple[int, str]]:
    (query,) = json.loads(works("search", index, *words, "--json", "--quiet").stdout)["result"]["queries"]
    return [(hit["rank"], hit["id"]) for hit in query["hits"]]


def test_pages_conditions_and_items(index: Path, invoke, refused) -> None:
    whole = found(invoke, index, "a red sky", "-k", 20)
    assert found(invoke, index, "a red sky", "-k", 3, "--skip", 2) == whole[2:5]
    some = found(invoke, index, "a red sky", "-k", 20, "--where", "path ~ 0[1-3]*", "--where", "size < 1MB")
    assert sorted(name for _, name in some) == ["01.png", "02.png", "03.png"]
    assert found(invoke, index, "a red sky", "--where", "split = test", "-k", 9) != []
    assert found(invoke, index, "a red sky", "--min-score", 2) == []
    like = found(invoke, index, "--like", "03.png", "-k", 20)
    assert len(like) == 19 and "03.png" not in dict(map(reversed, like))
    assert "'what'" in refused("search", index, "a red sky", "--where", "what")


def test_images_beside_sentences_and_what_to_avoid(trained: Path, index: Path, invoke, result_of, refused) -> None:
    photo = trained / "album" / "03.png"
    only_image = found(invoke, index, "a red sky", "--image", f"{photo},weight=1", "-k", 5)
    assert only_image == found(invoke, index, photo, "-k", 5)
    words = ("a red sky", "--avoid", "above,weight=2", "-k", 20)
    document = json.loads(invoke("search", index, "a red sky", "above", "-k", 20, "--json").stdout)
    sky, above = ({hit["id"]: hit["score"] for hit in query["hits"]} for query in document["result"]["queries"])
    (query,) = result_of("search", index, *words)["queries"]
    scores = {hit["id"]: hit["score"] for hit in query["hits"]}
    assert scores == {name: pytest.approx(sky[name] - 2 * above[name], abs=1e-5) for name in sky}
    for query in (("--like", photo), (photo,), ("a red sky", "--like", photo)):
        assert "--image" in refused("search", index, *query, "--image", f"{photo},weight=0.9")
        assert "--expected" in refused("search", index, *query, "--expected", 2)
    line = refused("search", index, "--like", "03.png", "--with", f"{photo},weight=0.9")  # nothing to weigh
    assert line.startswith("weight of --image ")
    assert found(invoke, index, "--like", "03.png", "--image", trained / "album" / "01.png") != []
    assert "--mcp" in refused("serve", index, "--mcp", "--port", 9000)
    assert "--rerank" in refused("search", index, *words, "--rerank", trained / "run" / "best")


def test_output_for_programs(trained: Path, index: Path, invoke, refused) -> None:
    paths = invoke("search", index, "a red sky", "above", "-k", 3, "--output", "paths").stdout.splitlines()
    assert all(Path(path).is_file() for path in paths) and len(set(paths)) == len(paths) >= 3
    assert invoke("search", index, "a red sky", "above", "-k", 3, "-0").stdout.split("\0") == [*paths, ""]
    lines = invoke("search", index, "a red sky", "above", "-k", 3, "--output", "jsonl").stdout.splitlines()
    hits = [json.loads(line) for line in lines]
    assert [(hit["query"], hit["rank"]) for hit in hits][3:] == [("above", 1), ("above", 2), ("above", 3)]
    assert [*dict.fromkeys(hit["path"] for hit in hits)] == paths
    assert "--json" in refused("search", index, "a red sky", "--json", "-0")
    for top in ("inf", "nan", "2.5", "0"):
        assert "--rerank" in refused("search", index, "a red sky", "--rerank", f"{trained},top={top}")


def test_captions_are_found_by_images(trained: Path, tmp_path: Path, works, refused) -> None:
    """Sentences are printed, and not their file."""
    text, out, photo = tmp_path / "captions.txt", tmp_path / "sentences", trained / "album" / "03.png"
    text.write_text("a red sky above blue ground\nsomething green\n")
    assert names(works("index", trained / "run" / "best", text, "--out", out).stdout, out, 2, 2, 0)
    assert "--html" in refused("search", out, "green", "--html", tmp_path / "x.html")
    lines = works("search", out, photo, "--output", "paths").stdout.splitlines()
    assert sorted(lines) == ["a red sky above blue ground", "something green"]
    assert works("search", out, photo, "-0").stdout.split("\0") == [*lines, ""]
    _, hit = works("search", out, photo, "-k", 1).stdout.splitlines()
    assert hit.endswith(f"  {lines[0]}")
