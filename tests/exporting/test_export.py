"""A model leaves openvse as a folder, and comes back from it with the same embeddings."""

import json
import re
import shlex
import shutil
import signal
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from exported_models import CAPTIONS, REGIONS, WORDS, files_in, make, with_gpo, with_several
from PIL import Image

import openvse
from contracts.test_export_contract import PIXELS, SENTENCES, SETS, embedders_of, expect_alone
from openvse import export
from openvse.conversion.convert import convert
from openvse.datasets import open_corpus
from openvse.errors import DataError, ModelError
from openvse.exporting.checking import embed_images, judge
from openvse.exporting.write import quantize
from openvse.files import replacing_files
from openvse.functional import pad
from openvse.kernels import is_traced, tracing
from openvse.model.two_tower import TwoTower
from openvse.runtime import OnnxModel
from openvse.runtime.model import read_description
from openvse.scoring.calibration import Calibration, CalibrationData
from tests import torchless
from tests.cli.album import write_album
from tests.dual_checkpoints import save_dual
from tests.naming import names, refusal

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def several(unchecked: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[TwoTower, Path]:
    """A model with several embeddings of both sides, and its export."""
    model, folder = with_several(), tmp_path_factory.mktemp("exports") / "several"
    data = CalibrationData("some", 10, 50, 50)
    model.calibration = Calibration(model.fingerprint, data, (0.0, 1.0), (-2.0, 3.0), (1.0, 0.1))
    export(model, folder, longest=60)
    return model, folder


@pytest.fixture(scope="module")
def clip(unchecked: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[TwoTower, Path]:
    """A small CLIP with random weights, and its export."""
    root = tmp_path_factory.mktemp("clip")
    model = convert(str(save_dual("clip", root / "checkpoint")), root / "model").model
    assert isinstance(model, TwoTower)
    export(model.eval(), root / "exported")
    return model, root / "exported"


def test_an_export_carries_what_a_runtime_needs(several: tuple[TwoTower, Path]) -> None:
    model, folder = several
    assert files_in(folder) == [
        "README.md",
        "calibration.json",
        "export.json",
        "image.onnx",
        "text.onnx",
        "vocabulary.json",
    ]
    said = read_description(folder)
    assert (said.fingerprint, said.num_embeddings, said.dim) == (model.fingerprint, (3, 2), 8)
    assert (said.image.inputs, said.image.longest, said.image.width) == (("features", "mask"), 60, 10)
    assert said.text.longest == 42
    assert max(said.checked.values()) <= 1e-4
    runtime = OnnxModel(folder)
    assert runtime.calibration == model.calibration
    assert names(refusal(ModelError, openvse.load, folder), "openvse.open")


def test_an_export_that_was_replaced_since_it_was_opened_is_refused(
    several: tuple[TwoTower, Path], tmp_path: Path
) -> None:
    """Its programs are read late, and would be those of another model."""
    folder = Path(shutil.copytree(several[1], tmp_path / "exported"))
    opened = OnnxModel(folder)
    with replacing_files(folder, "export.json") as partial:
        shutil.copytree(several[1], partial, dirs_exist_ok=True)
    for embed in (lambda: opened.encode_text("a dog"), lambda: opened.encode_features([np.zeros((1, 10), np.float32)])):
        with pytest.raises(ModelError, match=str(folder)):
            embed()
    assert len(OnnxModel(folder).encode_text("a dog").vectors) == 1


@torch.no_grad()
def test_sets_of_every_size_give_the_embeddings_of_the_model(several: tuple[TwoTower, Path]) -> None:
    model, folder = several
    runtime = OnnxModel(folder)
    sets = [torch.randn(size, 10) for size in (1, 2, 5, 36, 60)]
    inputs = pad(sets)
    theirs = runtime.encode_features([each.numpy() for each in sets], batch_size=2)
    assert np.allclose(model.image(inputs).vectors.numpy(), theirs.vectors, atol=1e-5)
    sentences = [*CAPTIONS, "", "dogz and elephants", "word " * 50]
    ours, other = model.encode_text(sentences), runtime.encode_text(sentences, batch_size=2)
    assert np.allclose(ours.vectors.numpy(), other.vectors, atol=1e-5)
    assert model.unknown_words(sentences) == runtime.unknown_words(sentences)
    scores = model.score(model.image(inputs), ours).numpy()
    assert np.allclose(scores, runtime.score(theirs, other), atol=1e-5)


def test_what_does_not_fit_the_export_is_refused(several: tuple[TwoTower, Path]) -> None:
    runtime = OnnxModel(several[1])
    assert names(refusal(ModelError, lambda: runtime.encode_image([Image.new("RGB", (8, 8))])), "exported")
    assert names(refusal(Exception, runtime.encode_features, [np.zeros((61, 10), np.float32)]), "60", "--longest", "61")
    assert names(refusal(Exception, runtime.encode_features, [np.zeros((3, 9), np.float32)]), "1", "60", "10")
    refusal(ModelError, export, several[1], several[1].parent / "again")


def test_images_and_sentences_of_a_clip(clip: tuple[TwoTower, Path], tmp_path: Path) -> None:
    model, folder = clip
    runtime = OnnxModel(folder)
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in ((40, 64), (33, 31), (90, 50))]
    ours = model.encode_image(images).vectors.numpy()
    assert np.allclose(ours, runtime.encode_image(images, batch_size=2).vectors, atol=1e-5)
    sentences = ["a dog", "two cat sits on the red mat", "a zebra runs " * 30]
    assert np.allclose(model.encode_text(sentences).vectors.numpy(), runtime.encode_text(sentences).vectors, atol=1e-5)
    follow_the_readme(folder, write_album(tmp_path / "photos", 3))


def follow_the_readme(folder: Path, photos: Path) -> None:
    """Do all that a friend without PyTorch is told, beside the folder of the export."""
    here = photos.parent
    shutil.copytree(folder, here / folder.name)
    shell, code = re.findall(r"```(?:bash|python)\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    install, *commands, serve = (shlex.split(line, comments=True) for line in shell.strip().splitlines())
    assert install == ["pip", "install", "."] and serve[:2] == ["openvse", "serve"]
    printed = []
    for program, *words in commands:
        assert program == "openvse"
        done = torchless.run(torchless.COMMAND, *words, folder=here)
        assert done.returncode == 0, (words, done.stderr)
        printed.append(done.stdout)
    assert len(printed) == 2 and all(path.name in printed[1] for path in photos.glob("*.png"))
    with torchless.begin(torchless.COMMAND, *serve[1:], "--port", "0", folder=here) as server:
        assert server.stderr is not None
        url = next(found[1] for line in server.stderr if (found := re.search(r" at (http://\S+/)", line)))
        assert json.load(urllib.request.urlopen(f"{url}api/search?q=dog&top_k=2"))["hits"]
        server.send_signal(signal.SIGINT)
        server.stderr.read()
    seen = torchless.run(code, folder=here)
    assert (seen.returncode, seen.stdout) == (0, f"{(2, read_description(folder).dim)}\n"), seen.stderr


def test_other_items_change_nothing(
    clip: tuple[TwoTower, Path], several: tuple[TwoTower, Path], tmp_path: Path
) -> None:
    rounded = Path(shutil.copytree(several[1], tmp_path / "rounded"))
    for side in ("image", "text"):
        quantize(rounded / f"{side}.onnx")
    said = json.loads((rounded / "export.json").read_text())
    (rounded / "export.json").write_text(json.dumps(said | {"precision": "int8"}))
    for folder, images in ((clip[1], PIXELS), (rounded, SETS)):
        of_texts, of_images = embedders_of(folder)
        expect_alone(of_texts, SENTENCES)
        expect_alone(of_images, images)


def test_int8_is_near_and_smaller(clip: tuple[TwoTower, Path], tmp_path: Path) -> None:
    folder = tmp_path / "rounded"
    shutil.copytree(clip[1], folder)
    quantize(folder / "text.onnx")
    assert (folder / "text.onnx").stat().st_size < (clip[1] / "text.onnx").stat().st_size
    exact, rounded = (OnnxModel(each).encode_text(["a dog runs", "two cat"]).vectors for each in (clip[1], folder))
    cosines = (exact * rounded).sum(axis=-1)
    assert cosines.min() > 0.97 and not np.array_equal(exact, rounded)


def test_the_effect_of_int8_is_measured_without_broken_images(
    clip: tuple[TwoTower, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    album = write_album(tmp_path / "album", 6)
    (album / "02.png").write_bytes((album / "02.png").read_bytes()[:90])
    (album / "04.png").write_bytes(b"")
    corpus = open_corpus(album)
    images, left = embed_images(OnnxModel(clip[1]), corpus)
    assert left.image_ids == ("00.png", "01.png", "03.png", "05.png")
    assert len(images.vectors) == 4
    told = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert len(told) == 2 and "02.png" in told[0] and "04.png" in told[1]
    assert names(refusal(DataError, lambda: embed_images(OnnxModel(clip[1]), corpus.select(np.array([2, 4])))), "album")


def test_an_export_that_is_wrong_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openvse.exporting.checking.judge", partial(judge, tolerance=-1.0))
    assert names(refusal(ModelError, lambda: export(with_gpo(), tmp_path / "wrong", longest=4)), "differ")
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize(
    ("image", "more", "told"),
    [
        ("tokens", {"similarity": "fused"}, "Fused"),
        ({"name": "tokens", "unit_length": True}, {}, "image.*--rerank"),
        ({"name": "adpool", "count_padding": True}, {}, "count_padding"),
    ],
)
def test_what_cannot_be_right_is_refused(tmp_path: Path, image: object, more: dict, told: str) -> None:
    text = "tokens" if more else "gpo"
    model = make({"encoder": REGIONS, "aggregator": image}, {"encoder": WORDS, "aggregator": text}, **more)
    with pytest.raises(ModelError, match=told):
        export(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_distributions_are_scored_by_their_distance(unchecked: None, tmp_path: Path) -> None:
    gaussian = {"name": "gaussian", "mean": "mean", "log_variance": "max", "start": -1.0}
    model = make(
        {"encoder": REGIONS, "aggregator": gaussian}, {"encoder": WORDS, "aggregator": gaussian}, similarity="csd"
    )
    export(model, tmp_path / "out", longest=20)
    exported = OnnxModel(tmp_path / "out")
    regions = [torch.randn(count, 10, generator=torch.Generator().manual_seed(count)) for count in (3, 1, 7)]
    images = exported.encode_features([each.numpy() for each in regions])
    scores = exported.score(images, exported.encode_text(CAPTIONS))
    with torch.no_grad():
        wanted = model.similarity(*model(pad(regions), pad(model.text.encoder.tokenize(CAPTIONS))))
    assert exported.kind == "csd"
    np.testing.assert_allclose(scores, wanted.numpy(), rtol=0, atol=1e-5)
    assert names(refusal(ModelError, export, model, tmp_path / "sentences", format="sentence_transformers"), "onnx")


def test_folders_of_other_things_stay(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_text("")
    with pytest.raises(ModelError, match=str(tmp_path)):
        export(with_gpo(), tmp_path)
    assert files_in(tmp_path) == ["photo.jpg"]
    with pytest.raises(ModelError, match="sentence_transformers"):
        export(with_gpo(), tmp_path / "out", format="sentence_transformers", int8=True)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "export.json"),
        ('{"kind": "openvse-export", "version": 9}', "export.json.* 9.*openvse-export"),
        (None, "openvse export"),
    ],
)
def test_a_damaged_description_is_one_line(tmp_path: Path, content: str | None, told: str) -> None:
    if content is not None:
        (tmp_path / "export.json").write_text(content)
    with pytest.raises(ModelError, match=told) as raised:
        read_description(tmp_path)
    assert "\n" not in str(raised.value)


def test_a_damaged_program_is_one_line(several: tuple[TwoTower, Path], tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(several[1], folder)
    (folder / "text.onnx").write_bytes(b"not a program")
    assert names(refusal(ModelError, lambda: OnnxModel(folder).encode_text(["a dog"])), "export")
    said = json.loads((folder / "export.json").read_text())
    said["text"]["reading"]["kind"] = "other"
    (folder / "export.json").write_text(json.dumps(said))
    assert names(refusal(ModelError, lambda: OnnxModel(folder).encode_text(["a dog"])), "'other'")


def test_only_the_thread_that_makes_a_program_takes_its_way(monkeypatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # as PyTorch says to all threads meanwhile
    with ThreadPoolExecutor(1) as other:
        assert is_traced() and other.submit(is_traced).result(), "a user's own torch.export"
        with tracing():
            assert is_traced() and not other.submit(is_traced).result()
