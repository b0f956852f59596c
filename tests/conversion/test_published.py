"""Models by short name: from the hub's cache, converted once and as a whole, or one line that says what is missing."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import openvse
from openvse.cli.app import app
from openvse.conversion import weights
from openvse.conversion.convert import convert, published_folder
from openvse.conversion.weights import PUBLISHED
from openvse.errors import CheckpointError, ModelError
from openvse.files import locked
from openvse.model import base
from tests.dual_checkpoints import save_dual
from tests.forking import forked
from tests.naming import names, refusal

pytestmark = pytest.mark.medium

COMMIT = "c" * 40
NAME = "clip-b32"
SOURCE = PUBLISHED[NAME].source


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: Any) -> Path:
    """Return an empty cache of the hub, which cannot be reached."""
    import huggingface_hub.constants

    folder = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("OPENVSE_CACHE", str(tmp_path / "converted"))
    return folder


def put(cache: Path, *, without: str = "") -> Path:
    """Put a small CLIP into the hub's cache, as a download leaves it, in the place of the published one."""
    repository = cache / f"models--{SOURCE.replace('/', '--')}"
    folder = save_dual("clip", repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    if without:
        (folder / without).unlink()
    return folder


def test_a_short_name_is_converted_once(cache: Path, make_photos: Any, tmp_path: Path, monkeypatch: Any) -> None:
    put(cache)
    make_photos(3)
    monkeypatch.chdir(tmp_path)
    indexed = CliRunner().invoke(app, ["index", NAME, "photos"])
    assert indexed.exit_code == 0 and "index: 3 images" in indexed.output
    for path in sorted(cache.rglob("*"), reverse=True):  # from now on the converted model alone is there
        path.rmdir() if path.is_dir() else path.unlink()
    found = CliRunner().invoke(app, ["search", NAME, "index", "a dog"])
    assert found.exit_code == 0 and found.output.count("photo_") == 3
    model = openvse.load(NAME)
    assert model.provenance["converted"] == {"source": SOURCE, "revision": COMMIT, "architecture": "clip"}
    assert model.image.encoder.fingerprint.startswith(f"{SOURCE}@{COMMIT[:12]}:")
    assert sorted(path.name for path in (tmp_path / "converted" / "models" / NAME).iterdir()) == [
        "model",
        "writer.lock",
    ]


def test_a_hub_id_converts_from_the_cache(cache: Path, tmp_path: Path) -> None:
    put(cache)
    assert convert(SOURCE, tmp_path / "a").model.fingerprint == convert(NAME, tmp_path / "b").model.fingerprint


def test_without_hub_and_cache_one_line_says_what_to_do(cache: Path, tmp_path: Path) -> None:
    caught = refusal(ModelError, openvse.load, NAME)
    message = caught
    assert message.startswith(
        f"{NAME} is {SOURCE}, which cannot be used: {SOURCE} is no folder and not in the hub's cache ("
    )
    assert names(message, f"hf download {SOURCE} --local-dir", "openvse convert")
    assert "\n" not in message
    assert names(refusal(CheckpointError, convert, SOURCE, tmp_path / "model"), SOURCE)


def test_a_cache_without_the_weights_is_said_to_have_none(cache: Path, tmp_path: Path) -> None:
    put(cache, without="model.safetensors")
    assert names(refusal(CheckpointError, convert, SOURCE, tmp_path / "model"), "model.safetensors")
    assert not (tmp_path / "model").exists()


def test_weights_larger_than_the_memory_are_not_downloaded(cache: Path, tmp_path: Path, monkeypatch: Any) -> None:
    import huggingface_hub
    import huggingface_hub.constants

    place = weights.ModelFiles(put(cache, without="model.safetensors"), SOURCE, COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    metadata = type("Metadata", (), {"size": 8_000_000_000})
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda url: metadata)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *a, **k: pytest.fail("downloaded"))
    monkeypatch.setattr("openvse.training.environment.memory_of_machine", lambda: 4_000_000_000)
    assert names(refusal(CheckpointError, place.find, "model.safetensors"), SOURCE, "8.0", "4.0")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("RepositoryNotFoundError", "someone/model"),
        ("GatedRepoError", "someone/model.*'hf auth login'"),
        (None, r"the hub cannot be reached \(no route\)"),
    ],
)
def test_what_the_hub_answers_is_one_line(error: str | None, told: str, monkeypatch: Any) -> None:
    import huggingface_hub
    from huggingface_hub import errors

    class Answered(getattr(errors, error) if error else RuntimeError):  # type: ignore[misc]
        def __init__(self) -> None:
            Exception.__init__(self, "no route")

    def answer(*args: Any, **options: Any) -> None:
        raise Answered

    monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)
    with pytest.raises(CheckpointError, match=told):
        weights.open_model("someone/model")


def test_another_process_that_converts_is_named(cache: Path, tmp_path: Path) -> None:
    put(cache)
    folder = tmp_path / "converted" / "models" / NAME
    folder.mkdir(parents=True)
    with locked(folder, "converted model", ModelError), pytest.raises(ModelError, match=f"clip-b32.*{os.getpid()}"):
        published_folder(NAME)


def test_other_names_are_no_short_names() -> None:
    assert published_folder("clip-b33") is None


def test_the_list_fits_a_terminal_and_names_every_model() -> None:
    shown = CliRunner().invoke(app, ["list", "models"]).output
    assert max(map(len, shown.splitlines())) <= 80
    for name, model in PUBLISHED.items():
        assert re.search(rf"^{name} .* {model.millions} M +{model.width}  {model.languages}$", shown, re.MULTILINE)
        assert f"{model.source} ({model.licence})" in shown
        assert weights.is_hub_id(model.source)


def killed_conversion() -> None:
    base.write_weights = lambda *a: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    openvse.load(NAME)


@pytest.mark.slow
def test_a_killed_conversion_leaves_no_model_and_the_next_one_makes_it(cache: Path, tmp_path: Path) -> None:
    put(cache)
    process = forked(killed_conversion)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    folder = tmp_path / "converted" / "models" / NAME
    assert [path.name for path in (folder / "model").iterdir()] == [".config.json.new"]
    assert openvse.load(NAME).spec.embed_dim == 12
    assert not (folder / "model" / ".config.json.new").exists()
