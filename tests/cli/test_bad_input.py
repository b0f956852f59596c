"""Whatever is wrong with the input: one line that names it, exit code 2, nothing on disk changed."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from album import digest

import openvse
from openvse.encoding import encode
from openvse.errors import OpenVSEError
from openvse.features.extract import extract_features
from tests.naming import names, refusal


def edit_captions(album: Path, change) -> None:
    """Rewrite each entry of the album's metadata; None drops it."""
    file = album / "metadata.jsonl"
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    kept = [changed for entry in entries if (changed := change(entry)) is not None]
    file.write_text("".join(json.dumps(entry) + "\n" for entry in kept))


def copy(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("training.batchsize=4", ["training.batchsize", "'batch_size'", "'chunk_size'"]),
        ("image.aggregator.tempature=1", ["image.aggregator.tempature", "'temperature'"]),
        ("image.aggregator=gpu", ["image.aggregator", "'gpu'", "'gpo'"]),
        ("training.batch_size=many", ["training.batch_size", "'many'"]),
        ("embed_dim=1000000000", ["embed_dim", 65536]),
        ("seed", ["'seed'", "key.path=value"]),
        ("seed=[1", ["'seed=[1'", "YAML"]),
        ("data.source=''", ["data.source"]),
        ("text.encoder.word_dim=1000000000000", ["memory"]),
    ],
)
def test_an_override_that_cannot_be(override: str, named: list, recipe: Path, tmp_path: Path, refused) -> None:
    assert names(refused("train", recipe, override, "--out", tmp_path / "run"), *named)
    assert not (tmp_path / "run" / "last.pt").exists()


def test_unknown_recipe(refused) -> None:
    line = refused("train", "vse_infinity/folder")
    assert names(line, "'vse_infinity/folder'", "'vse_infinity/folder_cpu'", "openvse list recipes")
    assert len(re.findall(r"'\w+/\w+'", line)) == 1 + 3  # what was given, and the three nearest


@pytest.mark.medium
def test_missing_feature_store(recipe: Path, trained: Path, album: Path, tmp_path: Path, refused) -> None:
    before, model, store = digest(album), trained / "run" / "best", tmp_path / "none"
    for words in (
        ("train", recipe, f"data.features={store}", "--out", tmp_path / "run"),
        ("evaluate", model, "--on", album, "--features", store),
    ):
        assert names(refused(*words), store, "openvse extract")
    assert digest(album) == before


@pytest.mark.medium
def test_stores_that_do_not_match_the_models(trained: Path, invoke, refused) -> None:
    model, stores = trained / "run" / "best", ("--features", trained / "run" / "features")
    words = ("evaluate", model, model, model, "--on", trained / "album", *stores, *stores)
    assert names(refused(*words), "--features", 2, 3)
    result = invoke("evaluate", trained / "album")
    assert result.exit_code == 2 and "--on" in result.stderr


@pytest.mark.medium
@pytest.mark.parametrize("name", ["features.npy", "lengths.npy", "ids.txt", "store.json", None])
def test_store_that_lost_a_file_or_is_of_another_encoder(
    name: str | None, recipe: Path, trained: Path, tmp_path: Path, refused
) -> None:
    store = copy(trained / "run" / "features", tmp_path / "store")
    words, named = [f"data.features={store}"], [store, "extract"]
    if name:
        (store / name).unlink()
    else:
        words, named = [*words, "image.encoder.image_size=96"], ["efficientnet_lite0:random:96"]
    before = digest(store)
    assert names(refused("train", recipe, *words, "--out", tmp_path / "run"), *named)
    assert digest(store) == before


@pytest.mark.medium
def test_captions_and_images_that_cannot_be_used_are_named_and_skipped(
    recipe: Path, album: Path, tmp_path: Path, works
) -> None:
    (album / "00.png").unlink()

    def change(entry: dict) -> dict | None:
        captions = [*entry["captions"], *["  "] * (entry["file_name"] > "10.png")]
        return None if entry["file_name"] == "01.png" else {**entry, "captions": captions}

    edit_captions(album, change)
    result = works("train", recipe, "training.phases.0.epochs=1", "--out", tmp_path / "run")
    for named in ((1, album / "00.png"), (1, "01.png"), (9, "11.png")):
        assert any(names(line, "warning: ", *named) for line in result.stderr.splitlines()), named


@pytest.mark.medium
def test_nothing_left(recipe: Path, album: Path, tmp_path: Path, refused) -> None:
    edit_captions(album, lambda entry: {**entry, "captions": [""]})
    before = digest(album)
    assert names(refused("train", recipe, "--out", tmp_path / "run"), "album", 20, "00.png")
    for image in album.glob("*.png"):
        image.unlink()
    assert names(refused("train", recipe, "--out", tmp_path / "run"), "album", 20, album / "00.png")
    assert {"metadata.jsonl": before["metadata.jsonl"]} == digest(album)


@pytest.mark.medium
def test_images_that_are_none(recipe: Path, album: Path, trained: Path, tmp_path: Path, refused) -> None:
    for image in album.glob("*.png"):
        image.write_text("not an image")
    before, model = digest(album), trained / "run" / "best"
    for words in (
        ("train", recipe, "--out", tmp_path / "run"),
        ("evaluate", model, "--on", album),
        ("index", model, album, "--out", tmp_path / "index"),
        ("extract", "efficientnet_lite0", album, tmp_path / "store", "pretrained=false", "image_size=64"),
    ):
        assert refused(*words)
    assert digest(album) == before


@pytest.mark.medium
def test_empty_folder(recipe: Path, trained: Path, tmp_path: Path, refused) -> None:
    empty, gone, model = tmp_path / "empty", tmp_path / "none", trained / "run" / "best"
    empty.mkdir()
    assert names(refused("train", recipe, f"data.source={empty}", "--out", tmp_path / "run"), empty, "metadata.jsonl")
    assert names(refused("evaluate", model, "--on", empty), empty, "metadata.jsonl")
    assert names(refused("index", model, empty, "--out", tmp_path / "index"), empty)
    assert names(refused("evaluate", model, "--on", gone), gone)
    assert names(refused("index", model, gone, "--out", tmp_path / "index"), gone)
    assert list(empty.iterdir()) == []
    assert not (tmp_path / "index").exists()


def test_half_written_metadata(recipe: Path, album: Path, tmp_path: Path, refused) -> None:
    file = album / "metadata.jsonl"
    file.write_text(file.read_text()[:-20])
    assert names(refused("train", recipe, "--out", tmp_path / "run"), f"{file}, line 20")


@pytest.mark.medium
def test_wrong_model_for_an_index(trained: Path, other: Path, refused) -> None:
    index, before = trained / "index", digest(trained / "index")
    assert names(refused("search", other / "best", index, "a red sky"), index, "openvse index")
    assert digest(index) == before


def test_no_index_or_query(trained: Path, tmp_path: Path, refused) -> None:
    model = trained / "run" / "best"
    assert names(refused("search", model, tmp_path, "a red sky"), tmp_path)
    assert refused("search", model, trained / "index", " ")


@pytest.mark.medium
@pytest.mark.parametrize("size", [0, 100, 0.5, None])
def test_half_written_checkpoint(size: float | None, trained: Path, tmp_path: Path, refused) -> None:
    run = copy(trained / "run", tmp_path / "run")
    if size is None:
        torch.save([1, 2, 3], run / "last.pt")
    else:
        whole = (run / "last.pt").read_bytes()
        (run / "last.pt").write_bytes(whole[: int(len(whole) * size) if size < 1 else int(size)])
    before = digest(run)
    assert names(refused("train", trained / "tiny.yaml", "--out", run, "--resume"), run / "last.pt", "--overwrite")
    assert digest(run) == before


@pytest.mark.medium
def test_a_run_that_is_there_already(trained: Path, refused) -> None:
    words, before = ("train", trained / "tiny.yaml", "--out", trained / "run"), digest(trained / "run")
    assert "--resume" in refused(*words)
    assert "embed_dim" in refused(*words, "embed_dim=8", "--resume")
    assert digest(trained / "run") == before


@pytest.mark.medium
def test_missing_model(trained: Path, tmp_path: Path, refused, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert names(refused("evaluate", tmp_path / "none", "--on", trained / "album"), tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert names(refused("evaluate", tmp_path / "empty", "--on", trained / "album"), "empty", "config.json")


@pytest.mark.medium
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "text/vocabulary.json"])
@pytest.mark.parametrize("share", [0.0, 0.6, None])
def test_truncated_model(name: str, share: float | None, trained: Path, tmp_path: Path, refused) -> None:
    model = copy(trained / "run" / "best", tmp_path / "model")
    whole = (model / name).read_bytes()
    if share is None:
        (model / name).unlink()
    else:
        (model / name).write_bytes(whole[: int(len(whole) * share)])
    before = digest(model)
    assert name in refused("evaluate", model, "--on", trained / "album")
    assert name in refused("search", model, trained / "index", "a red sky")
    assert digest(model) == before


def test_unknown_device(trained: Path, tmp_path: Path, refused) -> None:
    """The command line and Python refuse it in the same words."""
    model = trained / "run" / "best"
    line = refused("evaluate", model, "--on", trained / "album", "--device", "gpu")
    assert names(line, "'gpu'", "auto, cpu, cuda", "mps")
    backbone = openvse.load(model, device="auto").image.encoder.backbone
    for use in (
        partial(openvse.load, model),
        partial(openvse.open, model),
        partial(openvse.open, trained / "index"),
        partial(encode, model, trained / "album", tmp_path / "x.npy"),
        partial(extract_features, backbone, [], tmp_path / "store"),
    ):
        assert refusal(OpenVSEError, use, device="gpu") == line, use


@pytest.mark.medium
def test_unknown_split_encoder_and_option(trained: Path, album: Path, tmp_path: Path, refused) -> None:
    assert "'tset'" in refused("evaluate", trained / "run" / "best", "--on", album, "--split", "tset")
    store = tmp_path / "store"
    assert "'efficientnet_lite0'" in refused("extract", "efficientnet_lite", album, store)
    words = ("extract", "efficientnet_lite0", album, store)
    assert "'image_size'" in refused(*words, "imagesize=64")
    assert "key.path=value" in refused(*words, "image_size")
    assert not store.exists()


@pytest.mark.medium
def test_a_path_that_cannot_be_written(trained: Path, tmp_path: Path, refused) -> None:
    (tmp_path / "file").write_text("mine")
    words = ("search", trained / "run" / "best", trained / "index", "red", "--html")
    assert names(refused(*words, tmp_path / "file" / "x.html"), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), EOFError("it ended"), OSError("no file is named")])
def test_an_interrupt_ends_with_130_and_errors_of_our_own_are_not_hidden(
    invoke, raised: BaseException, monkeypatch
) -> None:
    def broken(within: str = "") -> list[str]:
        raise raised

    monkeypatch.setattr("openvse.specs.load.list_recipes", broken)
    result = invoke("list", "recipes")
    if isinstance(raised, KeyboardInterrupt):
        assert result.exit_code == 130 and len(result.stderr.splitlines()) == 1
    else:
        assert str(raised) in str(result.exception) and "Aborted" not in result.output


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hits.html", ("search", "index", "red", "--html", "hits.html")),
        ("ask.html", ("ask", "run/best", "album/a.png", "red?", "--html", "ask.html")),
        ("out/report.md", ("evaluate", "run/best", "--on", "album", "--out", "out")),
        ("out/predictions.json", ("evaluate", "run/best", "--on", "album", "--out", "out")),
        ("out/model.safetensors", ("blend", "run/best", "run/best", "--on", "album", "--out", "out")),
    ],
)
def test_no_file_is_replaced_unasked(
    name: str, words: tuple[str, ...], trained: Path, tmp_path: Path, refused, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("run", "index", "album"):
        Path(folder).symlink_to(trained / folder)
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("mine")
    assert name in refused(*words)
    assert Path(name).read_text() == "mine"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux alone")
def test_names_that_are_not_utf_8_pass_through_every_command(
    invoke, works, album: Path, recipe: Path, tmp_path: Path
) -> None:
    entries = [json.loads(line) for line in (album / "metadata.jsonl").read_text().splitlines()]
    (album / "metadata.jsonl").unlink()
    for entry in entries:  # captions beside the images, one of which has an odd name in each split
        place, name = album / entry["split"], Path(entry["file_name"])
        odd = b"\xff" if name.stem in ("00", "03", "04") else b""
        place.mkdir(exist_ok=True)
        (album / name).rename(os.fsdecode(bytes(place / name.stem) + odd + b".png"))
        captions = "\n".join(entry["captions"])
        Path(os.fsdecode(bytes(place / name.stem) + odd + b".txt")).write_text(captions)
    run, index = tmp_path / "run", tmp_path / "index"
    for words in (
        ("train", recipe, "--out", run, "training.phases=[{epochs: 1}]"),
        ("evaluate", run / "best", "--on", album, "--split", "test", "--out", tmp_path / "report"),
        ("analyze", "hits", run, "--on", album, "--out", tmp_path / "hits"),
        ("index", run / "best", album, "--out", index),
    ):
        works(*words)
    assert "04\ufffd.png" in (tmp_path / "hits" / "hits.csv").read_text()
    lines = invoke("search", index, "red", "-k", 20, "--output", "jsonl").stdout.splitlines()
    ids = [json.loads(line)["id"] for line in lines]
    assert len([name for name in ids if "\ufffd" in name and name.encode()]) == 3
    paths = invoke("search", index, "red", "-k", 20, "-0").stdout_bytes.split(b"\0")
    assert len([path for path in paths if b"\xff.png" in path]) == 3
