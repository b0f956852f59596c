"""The towers beside an index answer as the model does, are those of its model, and are written once."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from exported_models import CAPTIONS, WORDS, files_in, make
from typer.testing import CliRunner

from openvse.cli.app import app
from openvse.errors import ModelError
from openvse.exporting import write
from openvse.exporting.checking import Deviation
from openvse.exporting.write import export_for_queries, write_towers
from openvse.indexing import Index, build_index
from openvse.indexing.manifest import read_manifest
from openvse.model.two_tower import TwoTower
from openvse.runtime.beside import Towers, towers_of
from openvse.scoring.calibration import Calibration, CalibrationData
from openvse.scoring.hubs import write_arrays
from openvse.search import Query, SearchEngine
from openvse.search.opening import IndexTowers, open_towers
from tests.cli.album import write_album
from tests.conftest import draw_photo

pytestmark = pytest.mark.slow

PIXELS = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 32}
PADDED = {"name": "adpool", "count_padding": True}


@pytest.fixture(scope="module")
def model(unchecked: None) -> TwoTower:
    return make({"encoder": PIXELS, "aggregator": "mean"}, {"encoder": WORDS, "aggregator": "gpo"})


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_album(tmp_path_factory.mktemp("towers") / "album")


@pytest.fixture
def index(model: TwoTower, album: Path, tmp_path: Path) -> Path:
    build_index(model, album, tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture(scope="module")
def exported(model: TwoTower, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The towers of the model: ``text`` alone, and ``both``."""
    root = tmp_path_factory.mktemp("exported")
    for name in ("text", "both"):
        export_for_queries(model, root / name, images=name == "both")
    return root


@pytest.fixture
def exports(model: TwoTower, exported: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The calls of the export: whether images were asked for. Towers of the model are copied, as this takes no time."""
    calls: list[bool] = []

    def copied(given: TwoTower, folder: Path, *, images: bool, progress: Any = None) -> Any:
        calls.append(images)
        if given.fingerprint != model.fingerprint:
            return export_for_queries(given, folder, images=images, progress=progress)
        if progress is not None:
            progress(0, 1)
        return shutil.copytree(exported / ("both" if images else "text"), folder, dirs_exist_ok=True)

    monkeypatch.setattr(write, "export_for_queries", copied)
    return calls


def opened(index: Path, load: Callable[[], Any]) -> IndexTowers:
    towers, reason = open_towers(index, read_manifest(index), load)
    assert towers is not None, reason
    return towers


def not_needed() -> Any:
    raise AssertionError("the model itself is not needed")


def check_answers(model: TwoTower, towers: IndexTowers, index: Path, queries: Sequence[str | Query]) -> None:
    """Scores are equal to 1e-5, and so is the order, ties aside."""
    ours, theirs = (SearchEngine(each, Index.open(index)).search(queries, top_k=20) for each in (model, towers))
    for one, other in zip(ours, theirs, strict=True):
        scores = {hit.id: hit.score for hit in one}
        assert [hit.score for hit in other] == pytest.approx([scores[hit.id] for hit in other], abs=1e-5)
        assert [scores[hit.id] for hit in other] == pytest.approx(sorted(scores.values(), reverse=True), abs=1e-5)


@pytest.mark.usefixtures("exports")
def test_a_hundred_queries_have_the_same_order(model: TwoTower, index: Path) -> None:
    write_towers(model, index)
    rng = np.random.default_rng(0)
    words = [*" ".join(CAPTIONS).split(), "zebra"]
    sentences = [" ".join(rng.choice(words, rng.integers(1, 9))) for _ in range(100)]
    queries = [*sentences, Query("a dog", avoid=("a cat",)), Query(like="03.png")]
    check_answers(model, opened(index, not_needed), index, queries)


@pytest.mark.usefixtures("exports")
def test_what_the_towers_lack_is_asked_of_the_model(model: TwoTower, index: Path, album: Path) -> None:
    assert write_towers(model, index).sides == ("text",)
    loaded: list[TwoTower] = []
    towers = opened(index, lambda: loaded.append(model) or model)
    long = "dog " * 300  # more words than the program takes
    queries = [Query("a dog", image=album / "04.png"), Query(image=album / "05.png"), long]
    check_answers(model, towers, index, queries)
    assert len(loaded) == 1
    assert write_towers(model, index, "both").sides == ("image", "text")
    check_answers(model, opened(index, not_needed), index, queries[:2])


@pytest.mark.usefixtures("exports")
def test_an_index_is_updated_with_its_towers(model: TwoTower, album: Path, tmp_path: Path) -> None:
    album, index = shutil.copytree(album, tmp_path / "album"), tmp_path / "index"
    build_index(model, album, index)
    write_towers(model, index, "both")
    report = build_index(opened(index, not_needed), album, index)
    assert report.reused == report.count
    draw_photo(77).save(album / "new.png")
    loaded: list[TwoTower] = []
    build_index(opened(index, lambda: loaded.append(model) or model), album, index)
    assert len(loaded) == 1
    catalogue = SearchEngine(model, Index.open(index)).catalogue
    found = catalogue.vectors(np.array([catalogue.position("new.png")]))
    assert np.array_equal(found[0], model.encode_image(album / "new.png").vectors[0].numpy())


def test_an_unchanged_model_is_exported_once(model: TwoTower, index: Path, exports: list[bool]) -> None:
    for _ in range(2):
        assert write_towers(model, index) == Towers(("text",))
    assert exports == [False]
    assert write_towers(model, index, "none") == Towers()
    assert write_towers(model, index) == Towers()  # nobody wants it since
    assert files_in(towers_of(index, model.fingerprint)) == ["left_out.json"]
    assert write_towers(model, index, "both").sides == ("image", "text")
    assert write_towers(model, index).sides == ("image", "text")
    assert exports == [False, True]


def test_towers_of_another_model_are_never_used(model: TwoTower, index: Path, exports: list[bool]) -> None:
    write_towers(model, index)
    old = towers_of(index, "another").name
    manifest = replace(read_manifest(index), model="another")
    assert open_towers(index, manifest, not_needed)[0] is None
    towers_of(index, model.fingerprint).rename(index / old)  # not even where the name says so
    towers, reason = open_towers(index, manifest, not_needed)
    assert towers is None and reason
    write_towers(model, index)
    assert [path.name for path in index.glob("towers-*")] == [towers_of(index, model.fingerprint).name]
    assert opened(index, not_needed).fingerprint == model.fingerprint
    assert exports == [False, False]


def test_what_cannot_be_exported_is_said_once(index: Path, exports: list[bool]) -> None:
    padded = make({"encoder": PIXELS, "aggregator": "mean"}, {"encoder": WORDS, "aggregator": PADDED})
    first, second = (write_towers(padded, index) for _ in range(2))
    assert (first.sides, first.is_new, second.is_new, exports) == ((), True, False, [False])
    assert "count_padding" in first.left_out["text"]
    towers, reason = open_towers(index, replace(read_manifest(index), model=padded.fingerprint), not_needed)
    assert towers is None and reason == first.left_out["text"] == second.left_out["text"]


def test_a_tower_of_images_that_cannot_be_exported_leaves_that_of_texts(index: Path, exports: list[bool]) -> None:
    padded = make({"encoder": PIXELS, "aggregator": PADDED}, {"encoder": WORDS, "aggregator": "mean"})
    found = [write_towers(padded, index, wanted) for wanted in ("both", None, "both")]
    assert [(each.sides, [*each.left_out], each.is_new) for each in found] == [
        (("text",), ["image"], True),
        (("text",), ["image"], False),
        (("text",), ["image"], False),
    ]
    assert exports == [True, False]


@pytest.mark.usefixtures("exports")
def test_damage_leaves_an_index_that_searches(model: TwoTower, index: Path) -> None:
    folder = towers_of(index, model.fingerprint)
    (folder / ".export.json.new").mkdir(parents=True)  # what a killed process leaves
    (folder / ".export.json.new" / "text.onnx").write_bytes(b"half")
    assert open_towers(index, read_manifest(index), not_needed)[0] is None
    assert len(SearchEngine(model, Index.open(index)).search("a dog")) == 10
    assert write_towers(model, index).sides == ("text",)
    whole = (folder / "text.onnx").read_bytes()
    (folder / "text.onnx").write_bytes(whole[: len(whole) // 2])
    assert open_towers(index, read_manifest(index), not_needed)[0] is None
    assert write_towers(model, index).sides == ("text",)
    assert opened(index, not_needed).encode_text("a dog").vectors.shape == (1, 1, 8)


def test_scores_that_would_differ_are_not_written(
    model: TwoTower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Deviation("sentences", 1e-5, 1.0, 2e-5, 6)  # each number is near enough for an export
    monkeypatch.setattr(write, "_write", lambda *_: None)
    monkeypatch.setattr(write, "check_side", lambda *_: found)
    monkeypatch.setattr(write, "check_readers", lambda *_: [])
    with pytest.raises(ModelError, match=r"2\.0e-05"):
        write.export_for_queries(model, tmp_path / "towers", images=False)
    assert not (tmp_path / "towers").exists()


@pytest.mark.usefixtures("exports")
def test_the_curve_is_that_of_the_model_folder(
    model: TwoTower, album: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    best, index = model.save(tmp_path / "best"), tmp_path / "index"
    build_index(model, album, index, model_place={"absolute": str(best)})
    write_towers(model, index)
    assert opened(index, not_needed).calibration is None
    data = CalibrationData("some", 10, 50, 50)
    curve = Calibration(model.fingerprint, data, (0.0, 1.0), (-2.0, 3.0), (1.0, 0.1))
    (best / "calibration.json").write_text(curve.to_json())
    assert opened(index, not_needed).calibration == curve
    model.calibration = curve
    write_towers(model, index)
    assert not [message for message in caplog.messages if "--overwrite" in message]
    other = json.loads(curve.to_json())
    (best / "calibration.json").write_text(json.dumps(other | {"model": "another"}))  # trained anew
    assert opened(index, not_needed).calibration == curve
    assert [message for message in caplog.messages if str(index) in message and str(best) in message]
    (best / "calibration.json").unlink()  # as of a model of few images, whose bank says what it is
    for name, told in ((model.fingerprint, 0), ("another", 1)):
        caplog.clear()
        write_arrays(best, {"model": np.array(name)})
        opened(index, not_needed)
        assert len([message for message in caplog.messages if str(index) in message]) == told


WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from openvse.cli import main; main()"


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_commands_write_the_towers_and_search_with_them(
    model: TwoTower, album: Path, tmp_path: Path, exports: list[bool]
) -> None:
    best, index = model.save(tmp_path / "best"), tmp_path / "index"
    for told in ([True], [True, False]):  # the second time, nothing is to be done
        made = invoke("index", best, album, "--out", index, "--towers", "text")
        assert (made.exit_code, "writing towers" in made.stderr) == (0, told[-1]), made.output
    assert exports == [False]
    asked = ("search", index, "a dog", "-k", 3)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *map(str, asked)], capture_output=True, text=True, check=False
    )
    named = invoke("search", best, *asked[1:], "--verbose")
    assert (done.returncode, done.stdout) == (0, named.stdout), done.stderr
    assert done.stderr == "" and "not used" in named.stderr
    assert "without PyTorch" in invoke("--verbose", *asked).stderr
    shutil.rmtree(best)  # they are all that a search needs
    assert invoke(*asked).stdout == named.stdout
    gone = invoke("search", index, album / "03.png")
    assert gone.exit_code == 2 and str(best) in gone.stderr
