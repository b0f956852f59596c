"""Data on the command line: the list, the description of a data set, and the check of a copy."""

from __future__ import annotations

from pathlib import Path

import pytest
from album import write_album

from openvse.datasets import DATASETS
from tests.facts import FACTS
from tests.naming import names


def test_alone_it_lists_the_names(invoke) -> None:
    lines = invoke("list", "data").stdout.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == sorted(DATASETS)
    assert all(len(line.split()) > 3 for line in lines)


@pytest.mark.parametrize("name", list(FACTS))
def test_a_name_says_what_to_fetch_and_where_to_put_it(name: str, invoke) -> None:
    text = invoke("list", "data", name).stdout
    for piece in FACTS[name].pieces:
        assert piece.source in text
        assert f" {piece.paths[0].rstrip('/').rsplit('/', 1)[-1]}" in text
    assert FACTS[name].licence in text
    assert f"openvse data check {name}:ROOT" in text


def test_a_name_without_facts_says_what_is_read(invoke) -> None:
    text = invoke("list", "data", "folder").stdout
    assert "metadata.jsonl" in text and "Args:" not in text


@pytest.mark.medium
def test_an_unknown_name(refused) -> None:
    assert "'flickr8k'" in refused("list", "data", "flicker8k")
    assert "'flickr8k'" in refused("data", "check", "flicker8k:x")
    assert "flickr8k:FOLDER" in refused("data", "check", "flickr8k")


def test_a_check_says_what_is_missing(tmp_path: Path, invoke) -> None:
    result = invoke("data", "check", f"flickr8k:{tmp_path}")
    assert result.exit_code == 1
    images, captions, splits, terms = result.stdout.splitlines()
    for line, told in ((images, "image files"), (captions, "captions"), (splits, "splits")):
        assert line.startswith(f"WRONG  {told}: ")
    assert terms.startswith(" note  terms: ")
    assert names(result.stderr, "flickr8k", tmp_path)


def test_a_check_confirms_what_is_complete(tmp_path: Path, works) -> None:
    album = write_album(tmp_path / "album", 12)
    findings, counts, verdict = works("data", "check", f"folder:{album}").stdout.split("\n\n")
    assert [line.split()[:3] for line in counts.splitlines() if line[:1].isalpha()] == [
        ["split", "items", "sentences"],
        ["train", "8", "16"],
        ["validation", "2", "4"],
        ["test", "2", "4"],
        ["all", "12", "24"],
    ]
    assert [line[:7] for line in findings.splitlines()] == ["   ok  "] * 9
    assert names(findings, 12, 24, "8 / 2 / 2", 0, 8, 300, 12, "leakage: ") and names(verdict, "folder", album)


@pytest.mark.medium
def test_a_check_of_a_folder_lists_what_is_broken(tmp_path: Path, invoke, monkeypatch) -> None:
    album = write_album(tmp_path / "album", 12)
    for number in range(3):
        path = album / f"0{number}.png"
        path.write_bytes(path.read_bytes()[: 40 + number])
    monkeypatch.setattr("openvse.train_cli.commands.data.CASES", 2)
    result = invoke("data", "check", album)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    (enough,) = (line for line in lines if "images for training" in line)
    assert " 8 " in enough and "closed form" in enough and " 300 " in enough
    at = lines.index("WRONG  3 of 12 images are broken")
    assert lines[at + 1].startswith("         00.png: it is ")
    assert lines[at + 3].startswith("         ... and 1 more")
    assert names(result.stderr, album, "WRONG")
    assert invoke("data", "check", album, "--quick").exit_code == 0


@pytest.mark.medium
def test_a_check_of_images_outside(tmp_path: Path, invoke) -> None:
    album = write_album(tmp_path / "album", 12)
    (album / "00.png").rename(tmp_path / "00.png")
    (album / "00.png").symlink_to(tmp_path / "00.png")
    result = invoke("data", "check", album)
    assert result.exit_code == 1 and "'00.png'" in result.stdout
    for words in (("data", "check", album, "--allow-outside"), ("--allow-outside", "data", "check", album)):
        assert invoke(*words).exit_code == 0
    assert invoke("data", "check", album).exit_code == 1  # it is about one command
