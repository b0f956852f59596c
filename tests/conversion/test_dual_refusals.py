"""What is no dual encoder, or a damaged one, is refused in one line, and nothing is left behind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from openvse.conversion.convert import convert
from openvse.errors import CheckpointError
from openvse.training import environment
from tests.dual_checkpoints import save_dual, write_tokenizer
from tests.naming import names, refusal

pytestmark = pytest.mark.medium


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., str]:
    def run(source: Path | str, **options: Any) -> str:
        caught = refusal(CheckpointError, convert, source, tmp_path / "out" / "model", **options)
        assert not list((tmp_path / "out").glob("*")), "nothing is left behind"
        message = caught
        assert "\n" not in message and str(source) in message
        return message

    return run


@pytest.fixture(scope="module")
def clip(tmp_path_factory: Any) -> Path:
    return save_dual("clip", tmp_path_factory.mktemp("refused") / "clip")


@pytest.fixture
def changed(clip: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a maker of copies of the checkpoint with other weights."""

    def make(change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
        folder = tmp_path / "changed"
        folder.mkdir()
        for path in clip.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")
        return folder

    return make


def test_a_folder_of_anything_else(tmp_path: Path, refused: Any) -> None:
    (tmp_path / "photos").mkdir()
    assert names(refused(tmp_path / "photos"), "config.json", "open_clip_config.json")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"model_type": "bert"}, ["model_type", "'bert'", "CLIP, SigLIP"]),
        ({"model_type": "siglip2"}, ["NaFlex", "google/siglip2-base-patch16-224"]),
        ({"format_version": 2}, ["model_type", None]),
        ([1], ["config.json"]),
    ],
)
def test_another_architecture(config: Any, told: list[Any], tmp_path: Path, refused: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert names(refused(tmp_path), *told)


def test_weights_that_are_missing(clip: Path, tmp_path: Path, refused: Any) -> None:
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((clip / name).read_bytes())
    assert "model.safetensors" in refused(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "one.safetensors"}}')
    assert "one.safetensors" in refused(tmp_path)


def test_a_file_that_was_cut_short(changed: Any, refused: Any) -> None:
    folder = changed(lambda weights: None)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "model.safetensors" in refused(folder)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda w: w.pop("visual_projection.weight"), "1 "),
        (lambda w: w.update(extra=torch.zeros(1)), "'extra'"),
        (lambda w: w["text_projection.weight"].fill_(torch.nan), "NaN"),
        (lambda w: w["logit_scale"].fill_(torch.inf), ""),
        (lambda w: w.pop("logit_scale"), "'logit_scale'"),
    ],
)
def test_weights_that_are_not_the_models(change: Any, told: str, changed: Any, refused: Any) -> None:
    assert told in refused(changed(change))


def test_a_tokenizer_that_is_missing(changed: Any, refused: Any) -> None:
    folder = changed(lambda weights: None)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    assert "tokenizer.json" in refused(folder)


def test_a_tokenizer_with_more_words_than_the_model(changed: Any, tmp_path: Path, refused: Any) -> None:
    folder = changed(lambda weights: None)
    write_tokenizer("clip", tmp_path / "more", extra=80)
    assert names(refused(folder, vocabulary=tmp_path / "more"), 95, 64)


def test_an_image_tower_without_a_head(tmp_path: Path, refused: Any) -> None:
    folder = save_dual("siglip", tmp_path / "siglip")
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"]["vision_use_head"] = False
    (folder / "config.json").write_text(json.dumps(config))
    assert refused(folder)


def test_weights_that_exceed_the_memory(clip: Path, refused: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("openvse.training.environment.memory_of_machine", lambda: 50_000)
    told = refused(clip)
    assert names(told, "0.0 GB", "0.0 GB")


def test_eight_gigabytes_on_a_machine_with_four(monkeypatch: Any) -> None:
    monkeypatch.setattr("openvse.training.environment.memory_of_machine", lambda: 4_000_000_000)
    environment.expect_memory(3_900_000_000, "its weights")
    assert names(refusal(CheckpointError, environment.expect_memory, 8_000_000_000, "its weights"), "8.0", "4.0")


def test_the_memory_of_this_machine_is_known() -> None:
    there = environment.memory_of_machine()
    assert there is not None and there > 1 << 28


def test_a_folder_that_is_taken(clip: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    refusal(CheckpointError, convert, clip, tmp_path)
    (tmp_path / "empty").mkdir()
    convert(clip, tmp_path / "empty")
    assert (tmp_path / "empty" / "model.safetensors").is_file()
