"""``openvse search``: queries of several parts, conditions, pages, and output for other programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def index(trained: Path) -> Path:
    return trained / "index"


def found(invoke, index: Path, *words: object) -> list[tuple[int, str]]:
    result = invoke("search", index, *words, "--json", "--quiet")
    assert result.exit_code == 0, result.output
    (query,) = json.loads(result.stdout)["result"]["queries"]
    return [(hit["rank"], hit["id"]) for hit in query["hits"]]


@pytest.mark.medium
def test_pages_conditions_and_items(index: Path, invoke, refused) -> None:
    whole = found(invoke, index, "a red sky", "-k", 20)
    assert found(invoke, index, "a red sky", "-k", 3, "--skip", 2) == whole[2:5]
    some = found(invoke, index, "a red sky", "-k", 20, "--where", "path ~ 0[1-3]*", "--where", "size < 1MB")
    assert sorted(name for _, name in some) == ["01.png", "02.png", "03.png"]
    assert found(invoke, index, "a red sky", "--where", "split = test", "-k", 9) != []
    assert found(invoke, index, "a red sky", "--min-score", 2) == []
    like = found(invoke, index, "--like", "03.png", "-k", 20)
    assert len(like) == 19 and "03.png" not in dict(map(reversed, like))
    assert "is no condition" in refused("search", index, "a red sky", "--where", "what")


@pytest.mark.medium
def test_images_beside_sentences_and_what_to_avoid(trained: Path, index: Path, invoke, refused) -> None:
    photo = trained / "album" / "03.png"
    only_image = found(invoke, index, "a red sky", "--image", f"{photo},weight=1", "-k", 5)
    assert only_image == found(invoke, index, photo, "-k", 5)
    words = ("a red sky", "--avoid", "above,weight=2", "-k", 20)
    document = json.loads(invoke("search", index, "a red sky", "above", "-k", 20, "--json").stdout)
    sky, above = (
        {hit["id"]: hit["score"] for hit in query["hits"]} for query in document["result"]["queries"]
    )
    (query,) = json.loads(invoke("search", index, *words, "--json").stdout)["result"]["queries"]
    scores = {hit["id"]: hit["score"] for hit in query["hits"]}
    assert scores == {name: pytest.approx(sky[name] - 2 * above[name], abs=1e-5) for name in sky}
    for query in (("--like", photo), (photo,), ("a red sky", "--like", photo)):
        assert "--image" in refused("search", index, *query, "--image", f"{photo},weight=0.9")
        assert refused("search", index, *query, "--expected", 2).startswith("--expected takes sentences")
    line = refused("search", index, "--like", "03.png", "--with", f"{photo},weight=0.9")  # nothing to weigh
    assert line.startswith("weight of --image is for")
    assert found(invoke, index, "--like", "03.png", "--image", trained / "album" / "01.png") != []
    assert "--mcp" in refused("serve", index, "--mcp", "--port", 9000)
    assert "--rerank takes sentences" in refused(
        "search", index, *words, "--rerank", trained / "run" / "best"
    )


@pytest.mark.medium
def test_output_for_programs(trained: Path, index: Path, invoke, refused) -> None:
    paths = invoke("search", index, "a red sky", "above", "-k", 3, "--output", "paths").stdout.splitlines()
    assert all(Path(path).is_file() for path in paths) and len(set(paths)) == len(paths) >= 3
    assert invoke("search", index, "a red sky", "above", "-k", 3, "-0").stdout.split("\0") == [*paths, ""]
    lines = invoke("search", index, "a red sky", "above", "-k", 3, "--output", "jsonl").stdout.splitlines()
    hits = [json.loads(line) for line in lines]
    assert [(hit["query"], hit["rank"]) for hit in hits][3:] == [("above", 1), ("above", 2), ("above", 3)]
    assert [*dict.fromkeys(hit["path"] for hit in hits)] == paths
    assert "one output at a time" in refused("search", index, "a red sky", "--json", "-0")
    for top in ("inf", "nan", "2.5", "0"):
        assert "--rerank" in refused("search", index, "a red sky", "--rerank", f"{trained},top={top}")


@pytest.mark.medium
def test_sentences_are_printed_and_not_their_file(trained: Path, tmp_path: Path, invoke) -> None:
    (tmp_path / "captions.txt").write_text("a red sky\nblue above\n")
    captions = invoke(
        "index", trained / "run" / "best", tmp_path / "captions.txt", "--out", tmp_path / "index"
    )
    assert captions.exit_code == 0, captions.output
    photo = trained / "album" / "03.png"
    lines = invoke("search", tmp_path / "index", photo, "--output", "paths").stdout.splitlines()
    assert sorted(lines) == ["a red sky", "blue above"]
    assert invoke("search", tmp_path / "index", photo, "-0").stdout.split("\0") == [*lines, ""]


@pytest.mark.medium
def test_captions_are_found_by_images(trained: Path, tmp_path: Path, invoke, refused) -> None:
    text, out = tmp_path / "captions.txt", tmp_path / "sentences"
    text.write_text("a red sky above blue ground\nsomething green\n")
    result = invoke("index", trained / "run" / "best", text, "--out", out)
    assert result.stdout == f"{out}: 2 sentences (2 new, 0 unreadable)\n"
    result = invoke("search", out, trained / "album" / "03.png", "-k", 1)
    assert result.exit_code == 0
    assert "holds sentences: leave out" in refused("search", out, "green", "--html", tmp_path / "x.html")
    assert result.stdout.splitlines()[1].endswith(("  a red sky above blue ground", "  something green"))
