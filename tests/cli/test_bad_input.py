"""Whatever is wrong with the input: one line that says what to do, exit code 2, nothing on disk changed."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from album import digest
from click.testing import Result

import openvse
from openvse.encoding import encode
from openvse.errors import OpenVSEError
from openvse.features.extract import extract_features
from tests.naming import names


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
    ("override", "expected"),
    [
        (
            "training.batchsize=4",
            "unknown key training.batchsize; did you mean 'batch_size' or 'chunk_size'?",
        ),
        (
            "image.aggregator.tempature=1",
            "unknown key image.aggregator.tempature; did you mean 'temperature'?",
        ),
        ("image.aggregator=gpu", "image.aggregator: unknown aggregator 'gpu'; did you mean 'gpo'?"),
        ("training.batch_size=many", "training.batch_size: input should be a valid integer"),
        ("embed_dim=1000000000", "embed_dim: input should be less than or equal to 65536"),
        ("seed", "override 'seed' is not of the form key.path=value"),
        ("seed=[1", "override 'seed=[1': the value is not YAML"),
    ],
)
def test_unknown_recipe_key(override: str, expected: str, recipe: Path, tmp_path: Path, refused) -> None:
    assert expected in refused("train", recipe, override, "--out", tmp_path / "run")
    assert not (tmp_path / "run" / "last.pt").exists()


def test_unknown_recipe(refused) -> None:
    line = refused("train", "vse_infinity/folder")
    assert line.startswith("no recipe 'vse_infinity/folder'; did you mean 'vse_infinity/folder_cpu', ")
    assert re.search(
        r"\('openvse list recipes' lists all \d+\): give a YAML file, or the name of a recipe$", line
    )
    assert line.count("'") == 2 + 3 * 2 + 2  # what was given, the three nearest, the command


def test_no_data_source(recipe: Path, refused, tmp_path: Path) -> None:
    line = refused("train", recipe, "data.source=''", "--out", tmp_path / "run")
    assert "data.source" in line


@pytest.mark.medium
def test_missing_feature_store(recipe: Path, trained: Path, album: Path, tmp_path: Path, refused) -> None:
    before = digest(album)
    line = refused("train", recipe, f"data.features={tmp_path / 'none'}", "--out", tmp_path / "run")
    assert str(tmp_path / "none") in line and "openvse extract" in line
    model = trained / "run" / "best"
    assert "openvse extract" in refused("evaluate", model, "--on", album, "--features", tmp_path / "none")
    assert digest(album) == before


@pytest.mark.medium
def test_stores_that_do_not_match_the_models(trained: Path, invoke, refused) -> None:
    model, store = trained / "run" / "best", trained / "run" / "features"
    words = (
        "evaluate",
        model,
        model,
        model,
        "--on",
        trained / "album",
        "--features",
        store,
        "--features",
        store,
    )
    assert names(refused(*words), "--features", 2, 3)
    result = invoke("evaluate", trained / "album")
    assert result.exit_code == 2 and "missing option" in result.stderr.lower()


@pytest.mark.medium
@pytest.mark.parametrize("name", ["features.npy", "lengths.npy", "ids.txt", "store.json"])
def test_store_that_lost_a_file(name: str, recipe: Path, trained: Path, tmp_path: Path, refused) -> None:
    store = copy(trained / "run" / "features", tmp_path / "store")
    (store / name).unlink()
    before = digest(store)
    line = refused("train", recipe, f"data.features={store}", "--out", tmp_path / "run")
    assert str(store) in line and "extract" in line
    assert digest(store) == before


@pytest.mark.medium
def test_store_of_another_encoder(recipe: Path, trained: Path, tmp_path: Path, refused) -> None:
    store = copy(trained / "run" / "features", tmp_path / "store")
    before = digest(store)
    words = (f"data.features={store}", "image.encoder.image_size=96")
    assert "efficientnet_lite0:random:96" in refused("train", recipe, *words, "--out", tmp_path / "run")
    assert digest(store) == before


@pytest.mark.medium
def test_captions_without_image_are_named_and_skipped(
    recipe: Path, album: Path, tmp_path: Path, invoke
) -> None:
    (album / "00.png").unlink()
    result = invoke("train", recipe, "training.phases.0.epochs=1", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    expected = f"skipped 1 captioned image(s) without a file (first: {album / '00.png'})"
    assert f"warning: {expected}\n" in result.stderr


@pytest.mark.medium
def test_image_without_captions_is_named_and_skipped(
    recipe: Path, album: Path, tmp_path: Path, invoke
) -> None:
    edit_captions(album, lambda entry: None if entry["file_name"] == "01.png" else entry)
    result = invoke("train", recipe, "training.phases.0.epochs=1", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert names(result.stderr, "warning: ", 1, "01.png")


@pytest.mark.medium
def test_empty_caption_is_named_and_skipped(recipe: Path, album: Path, tmp_path: Path, invoke) -> None:
    edit_captions(album, lambda entry: {**entry, "captions": [*entry["captions"], "  "]})
    result = invoke("train", recipe, "training.phases.0.epochs=1", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert names(result.stderr, "warning: ", 20, "00.png")


@pytest.mark.medium
def test_nothing_left(recipe: Path, album: Path, tmp_path: Path, refused) -> None:
    edit_captions(album, lambda entry: {**entry, "captions": [""]})
    before = digest(album)
    line = refused("train", recipe, "--out", tmp_path / "run")
    assert "empty caption" in line
    for image in album.glob("*.png"):
        image.unlink()
    assert "without a file" in refused("train", recipe, "--out", tmp_path / "run")
    assert {"metadata.jsonl": before["metadata.jsonl"]} == digest(album)


@pytest.mark.medium
def test_images_that_are_none(recipe: Path, album: Path, trained: Path, tmp_path: Path, refused) -> None:
    for image in album.glob("*.png"):
        image.write_text("not an image")
    before = digest(album)
    assert refused("train", recipe, "--out", tmp_path / "run")
    model = trained / "run" / "best"
    assert refused("evaluate", model, "--on", album)
    assert refused("index", model, album, "--out", tmp_path / "index")
    words = ("pretrained=false", "image_size=64")
    line = refused("extract", "efficientnet_lite0", album, tmp_path / "store", *words)
    assert "images" in line
    assert digest(album) == before


@pytest.mark.medium
def test_empty_folder(recipe: Path, trained: Path, tmp_path: Path, refused) -> None:
    empty, model = tmp_path / "empty", trained / "run" / "best"
    empty.mkdir()
    expected = "no image(s) and no captions there (expected metadata.jsonl"
    assert expected in refused("train", recipe, f"data.source={empty}", "--out", tmp_path / "run")
    assert expected in refused("evaluate", model, "--on", empty)
    assert "give a folder with images" in refused("index", model, empty, "--out", tmp_path / "index")
    assert names(refused("evaluate", model, "--on", tmp_path / "none"), tmp_path / "none")
    assert names(refused("index", model, tmp_path / "none", "--out", tmp_path / "index"), tmp_path / "none")
    assert list(empty.iterdir()) == []
    assert not (tmp_path / "index").exists()


def test_half_written_metadata(recipe: Path, album: Path, tmp_path: Path, refused) -> None:
    file = album / "metadata.jsonl"
    file.write_text(file.read_text()[:-20])
    assert f"{file}, line 20: not JSON" in refused("train", recipe, "--out", tmp_path / "run")


@pytest.mark.medium
def test_wrong_model_for_an_index(recipe: Path, trained: Path, tmp_path: Path, invoke, refused) -> None:
    words = ("seed=1", "training.phases.0.epochs=1", "--out", tmp_path / "other")
    assert invoke("train", recipe, *words).exit_code == 0
    before = digest(trained / "index")
    line = refused("search", tmp_path / "other" / "best", trained / "index", "a red sky")
    assert "was made by model" in line and "openvse index" in line
    assert digest(trained / "index") == before


def test_no_index(trained: Path, tmp_path: Path, refused) -> None:
    line = refused("search", trained / "run" / "best", tmp_path, "a red sky")
    assert names(line, str(tmp_path), "index", "folder of images")


@pytest.mark.medium
def test_empty_query(trained: Path, refused) -> None:
    assert "all queries are empty" in refused("search", trained / "run" / "best", trained / "index", " ")


@pytest.mark.medium
@pytest.mark.parametrize("size", [0, 100, 0.5])
def test_half_written_checkpoint(size: float, trained: Path, tmp_path: Path, refused) -> None:
    run = copy(trained / "run", tmp_path / "run")
    whole = (run / "last.pt").read_bytes()
    (run / "last.pt").write_bytes(whole[: int(len(whole) * size) if size < 1 else int(size)])
    before = digest(run)
    line = refused("train", trained / "tiny.yaml", "--out", run, "--resume")
    assert f"checkpoint {run / 'last.pt'} is damaged" in line and "--overwrite" in line
    assert digest(run) == before


@pytest.mark.medium
def test_checkpoint_that_is_something_else(trained: Path, tmp_path: Path, refused) -> None:
    run = copy(trained / "run", tmp_path / "run")
    torch.save([1, 2, 3], run / "last.pt")
    assert "is damaged" in refused("train", trained / "tiny.yaml", "--out", run, "--resume")


@pytest.mark.medium
def test_a_run_that_is_there_already(trained: Path, refused) -> None:
    recipe = trained / "tiny.yaml"
    before = digest(trained / "run")
    assert "continue it with --resume" in refused("train", recipe, "--out", trained / "run")
    words = ("embed_dim=8", "--out", trained / "run", "--resume")
    assert "embed_dim" in refused("train", recipe, *words)
    assert digest(trained / "run") == before


@pytest.mark.medium
def test_missing_model(trained: Path, tmp_path: Path, refused, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert names(refused("evaluate", tmp_path / "none", "--on", trained / "album"), tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in refused("evaluate", tmp_path / "empty", "--on", trained / "album")


@pytest.mark.medium
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "text/vocabulary.json"])
@pytest.mark.parametrize("share", [0.0, 0.6])
def test_truncated_model(name: str, share: float, trained: Path, tmp_path: Path, refused) -> None:
    model = copy(trained / "run" / "best", tmp_path / "model")
    whole = (model / name).read_bytes()
    (model / name).write_bytes(whole[: int(len(whole) * share)])
    before = digest(model)
    line = refused("evaluate", model, "--on", trained / "album")
    assert str(model / name) in line and "save" in line
    assert str(model / name) in refused("search", model, trained / "index", "a red sky")
    assert digest(model) == before


@pytest.mark.medium
def test_model_that_lost_its_vocabulary(trained: Path, tmp_path: Path, refused) -> None:
    model = copy(trained / "run" / "best", tmp_path / "model")
    (model / "text" / "vocabulary.json").unlink()
    assert "vocabulary.json" in refused("evaluate", model, "--on", trained / "album")


def test_unknown_device(trained: Path, tmp_path: Path, refused) -> None:
    """The command line and Python refuse it in the same words."""
    model = trained / "run" / "best"
    line = refused("evaluate", model, "--on", trained / "album", "--device", "gpu")
    assert line.startswith("device 'gpu' cannot be used here") and line.endswith(
        "give auto, cpu, cuda or mps"
    )
    backbone = openvse.load(model, device="auto").image.encoder.backbone
    for use in (
        partial(openvse.load, model),
        partial(openvse.open, model),
        partial(openvse.open, trained / "index"),
        partial(encode, model, trained / "album", tmp_path / "x.npy"),
        partial(extract_features, backbone, [], tmp_path / "store"),
    ):
        with pytest.raises(OpenVSEError) as error:
            use(device="gpu")
        assert str(error.value) == line, use


@pytest.mark.medium
def test_unknown_split_encoder_and_option(trained: Path, album: Path, tmp_path: Path, refused) -> None:
    assert "unknown split 'tset'" in refused(
        "evaluate", trained / "run" / "best", "--on", album, "--split", "tset"
    )
    store = tmp_path / "store"
    assert "'efficientnet_lite0'" in refused("extract", "efficientnet_lite", album, store)
    words = ("extract", "efficientnet_lite0", album, store)
    assert "'image_size'" in refused(*words, "imagesize=64")
    assert "key.path=value" in refused(*words, "image_size")
    assert not store.exists()


@pytest.mark.medium
def test_a_path_that_cannot_be_written(trained: Path, tmp_path: Path, refused) -> None:
    (tmp_path / "file").write_text("mine")
    line = refused(
        "search", trained / "run" / "best", trained / "index", "red", "--html", tmp_path / "file" / "x.html"
    )
    assert str(tmp_path / "file") in line and line.endswith("choose another path")
    assert (tmp_path / "file").read_text() == "mine"


def test_interrupt_ends_with_130(invoke, monkeypatch) -> None:
    def interrupted(within: str = "") -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr("openvse.specs.load.list_recipes", interrupted)
    result = invoke("list", "recipes")
    assert (result.exit_code, result.stderr) == (
        130,
        "openvse: interrupted: run the command again\n",
    )


@pytest.mark.medium
def test_a_model_that_the_memory_cannot_hold(recipe: Path, tmp_path: Path, refused) -> None:
    line = refused("train", recipe, "text.encoder.word_dim=1000000000000", "--out", tmp_path / "run")
    assert line.startswith("there is not enough memory (") and line.endswith("or a smaller model")
    assert not (tmp_path / "run" / "last.pt").exists()


def test_a_file_that_ends_too_early_is_not_called_aborted(invoke, monkeypatch) -> None:
    def broken(within: str = "") -> list[str]:
        raise EOFError("No data left in file")

    monkeypatch.setattr("openvse.specs.load.list_recipes", broken)
    result = invoke("list", "recipes")
    assert "Aborted" not in result.output and "No data left in file" in str(result.exception)


def test_an_error_of_our_own_is_not_hidden(invoke, monkeypatch) -> None:
    def broken(within: str = "") -> list[str]:
        raise OSError("no file is named")

    monkeypatch.setattr("openvse.specs.load.list_recipes", broken)
    assert isinstance(invoke("list", "recipes").exception, OSError)


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
    name: str,
    words: tuple[str, ...],
    trained: Path,
    tmp_path: Path,
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("run", "index", "album"):
        Path(folder).symlink_to(trained / folder)
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("mine")
    assert f"{name} is already there" in refused(*words)
    assert Path(name).read_text() == "mine"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux alone")
def test_names_that_are_not_utf_8_pass_through_every_command(
    invoke: Callable[..., Result], album: Path, recipe: Path, tmp_path: Path
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
        result = invoke(*words)
        assert result.exit_code == 0, (words, result.output, result.exception)
    assert "04\ufffd.png" in (tmp_path / "hits" / "hits.csv").read_text()
    lines = invoke("search", index, "red", "-k", 20, "--output", "jsonl").stdout.splitlines()
    ids = [json.loads(line)["id"] for line in lines]
    assert len([name for name in ids if "\ufffd" in name and name.encode()]) == 3
    paths = invoke("search", index, "red", "-k", 20, "-0").stdout_bytes.split(b"\0")
    assert len([path for path in paths if b"\xff.png" in path]) == 3
