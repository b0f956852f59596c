"""Sentences and images as queries of one command."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from openvse.cli.commands.search import Asked, names_image, read_queries
from openvse.errors import OpenVSEError
from tests.naming import names, refusal


def test_a_path_of_an_image_is_an_image(tmp_path: Path) -> None:
    photo, odd = tmp_path / "my photo.JPG", tmp_path / "photo"
    photo.touch()
    odd.touch()
    asked = read_queries(["a dog", str(photo)], [str(odd), "b.png"], ["a.png", "b.png"])
    assert asked == [Asked("a dog"), Asked(str(photo), photo), Asked(str(odd), odd), Asked("b.png", is_item=True)]
    assert [one.title for one in asked[:2]] == ["a dog", f"images like {photo}"]
    assert [one.kind for one in asked] == ["text", "image", "image", "item"]
    assert read_queries(["a dog in a jpg"], [], [])[0].image is None
    assert names(refusal(OpenVSEError, read_queries, [], ["gone"], ["a.png"]), "--like")
    os.mkfifo(tmp_path / "pipe.jpg")
    assert names(refusal(OpenVSEError, lambda: read_queries([str(tmp_path / "pipe.jpg")], [], [])), "ordinary")
    assert names_image("clip.mp4") and not names_image("what is a .jpg file")
    for name in ("photo.jxl", "a/IMG_1.CR2", "./x.heif", "../clip.3gp", "a.mts", "a.ogv", "a.j2k", "a b.apng"):
        assert names_image(name), name
    for sentence in ("a dog. a cat", "at 3 p.m.", "see chapter 2.pdf", "3.5"):
        assert not names_image(sentence), sentence


@pytest.mark.parametrize("word", ["gone.jpg", "a" * 300 + ".png"])
def test_an_image_that_is_not_there_is_refused(word: str) -> None:
    assert names(refusal(OpenVSEError, read_queries, [word], [], []), "image")


def test_nothing_asked_is_refused() -> None:
    assert names(refusal(OpenVSEError, read_queries, [], [], []), "query")


@pytest.mark.medium
def test_images_find_images(trained: Path, tmp_path: Path, invoke, works, refused) -> None:
    best, index, photo = trained / "run" / "best", trained / "index", trained / "album" / "03.png"
    page = tmp_path / "hits.html"
    lines = works("search", best, index, photo, "red sky", "-k", 2, "--html", page).stdout.splitlines()
    assert [lines[0], lines[3]] == [f"images like {photo}", "red sky"]
    assert lines[1].split()[1] == "1.0000"  # it finds itself, or one that is equal to it
    text = page.read_text()
    assert text.count('<img class="asked"') == 1
    assert text.count('<span class="caption">') == 4  # of the album's metadata.jsonl
    same = invoke("search", best, index, "--like", photo, "-k", 2, "--json", "--quiet")
    assert same.stderr == ""
    (asked,) = json.loads(same.stdout)["result"]["queries"]
    assert (asked["query"], asked["kind"], len(asked["hits"])) == (str(photo), "image", 2)
    assert asked["hits"][0].keys() == {
        *("rank", "score", "probability", "fit", "title", "id", "path", "by", "matched", "text"),
        *("alike", "start", "end"),
    }
    assert asked["hits"][0]["probability"] is None
    assert asked["unknown_words"] == []
    assert Path(asked["hits"][0]["path"]).is_file()
    assert "gone.jpg" in refused("search", best, index, "gone.jpg")


@pytest.mark.medium
def test_an_empty_sentence_does_not_cancel_the_others(trained: Path, invoke) -> None:
    best, index, photo = trained / "run" / "best", trained / "index", trained / "album" / "03.png"

    def found(*words: object) -> tuple[list[int], list[str]]:
        document = json.loads(invoke("search", best, index, *words, "-k", 2, "--json").stdout)
        return [len(query["hits"]) for query in document["result"]["queries"]], document["warnings"]

    for words in ((" ", photo), (" ", "red sky"), (" ", "red sky", "--rerank", best)):
        counts, (warning,) = found(*words)
        assert counts == [0, 2] and names(warning, 1, 2)


@pytest.mark.medium
def test_images_that_are_gone_are_said(trained: Path, album: Path, tmp_path: Path, invoke) -> None:
    best, index = trained / "run" / "best", tmp_path / "index"
    assert invoke("index", best, album, "--out", index).exit_code == 0
    for number in range(3, 20):
        (album / f"{number:02d}.png").unlink()
    result = invoke("search", best, index, "red sky", "-k", 20)
    assert "warning: 17 " in result.stderr
    album.rename(tmp_path / "moved")
    result = invoke("search", best, index, "red sky", "-k", 20)
    assert names(result.stderr, "warning: ", index, album, "openvse index")
