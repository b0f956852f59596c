"""Teaching: lines that stay byte for byte, maps that are solved anew, and an index on the disk that follows."""

from __future__ import annotations

import json
import stat
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openvse.teaching.teacher as captions_module
import openvse.teaching.teacher as teacher_module
from openvse.errors import DataError, IndexFormatError, MissingItemError, TextError
from openvse.indexing import Index, build_index, writer
from openvse.indexing.manifest import find_model
from openvse.model.two_tower import TwoTower
from openvse.retrieval.closed_form import described_by, linear_maps, maps_of_names, sentences_of
from openvse.retrieval.names import imagenet_names
from openvse.search import SearchEngine
from openvse.tasks.load import load_as
from openvse.teaching.described import describe_folder
from openvse.teaching.teacher import CaptionFile, Teacher, checked_captions
from tests.naming import names, refusal
from tests.teaching.folders import SAID, make_index, small_model, write_folder


def test_every_other_line_stays_byte_for_byte(tmp_path: Path) -> None:
    path, before = (
        tmp_path / "metadata.jsonl",
        b'\xef\xbb\xbf{"file_name": "a.jpg",  "captions": ["\xc3\xa9"]}\r\nno JSON\n\n{"b": 1}',
    )
    path.write_bytes(before)
    path.chmod(0o640)
    file = CaptionFile(tmp_path)
    line = file.add(tmp_path / "sub" / "b.jpg", ["a dog", "Öl"])
    assert line == '{"file_name": "sub/b.jpg", "captions": ["a dog", "Öl"]}\n'.encode()
    assert path.read_bytes() == before + b"\n" + line and stat.S_IMODE(path.stat().st_mode) == 0o640
    file.add(tmp_path / "c.jpg", ["x"])
    assert file.remove(line) and not file.remove(line)
    assert path.read_bytes() == before + b"\n" + b'{"file_name": "c.jpg", "captions": ["x"]}\n'
    assert [each.name for each in tmp_path.iterdir()] == ["metadata.jsonl"]


def test_what_another_program_writes_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, written = tmp_path / "metadata.jsonl", [b'{"file_name": "a.jpg", "captions": ["of an editor"]}\n', b""]
    path.write_bytes(b'{"file_name": "old.jpg"}\n')
    sync = captions_module.sync

    def slow_sync(partial: Path) -> None:
        with path.open("ab") as other:
            other.write(written.pop(0))
        sync(partial)

    monkeypatch.setattr(captions_module, "sync", slow_sync)
    CaptionFile(tmp_path).add(tmp_path / "b.jpg", ["a dog"])
    assert path.read_text().splitlines() == [
        '{"file_name": "old.jpg"}',
        '{"file_name": "a.jpg", "captions": ["of an editor"]}',
        '{"file_name": "b.jpg", "captions": ["a dog"]}',
    ]


def test_files_that_teaching_must_not_write_are_refused(tmp_path: Path) -> None:
    (tmp_path / "else.jsonl").write_text("")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "metadata.jsonl").symlink_to(tmp_path / "else.jsonl")
    assert names(refusal(DataError, CaptionFile, tmp_path / "link"), "is a link")
    folder = write_folder(tmp_path / "photos", 2, 0)
    (folder / "metadata.jsonl").unlink()
    (folder / "00.txt").write_text("a dog")
    assert names(refusal(DataError, CaptionFile, folder), "other than metadata.jsonl: give a file of its own")
    own = CaptionFile(folder, tmp_path / "own.jsonl")
    own.add(folder / "01.jpg", ["a cat"])
    assert own.read() == {"01.jpg": ["a cat"]} and '"photos/01.jpg"' in own.path.read_text()
    own.path.write_bytes("é".encode("utf-16"))
    assert names(refusal(TextError, own.add, folder / "01.jpg", ["a cat"]), "UTF-16")


def test_captions_are_lines_of_printable_text() -> None:
    assert checked_captions("  a\n\tdog \u2028 ") == ["a dog"]
    for given in ([], [" "], "a\x00b", "\x1b[31mred", "x" * 1001, ["a"] * 21, "\ud800"):
        refusal(DataError, checked_captions, given)


def embedded(engine: SearchEngine, places: Any = slice(None)) -> Any:
    return engine.catalogue.vectors(np.arange(len(engine.catalogue))[places])[:, 0]


@pytest.mark.slow
def test_a_caption_is_learned_found_and_undone(tmp_path: Path) -> None:
    model = make_index(tmp_path, 24, 19, classes=1000)
    with SearchEngine(model, tmp_path / "index") as engine:
        before = embedded(engine)
        engine.teach("19.jpg", "the Eiffel tower")
        taught = embedded(engine)
        described, photos = described_by(model), sorted((tmp_path / "photos").glob("*.jpg"))
        rows = described.encode_image(photos).vectors[:, 0].half().double().numpy()  # as they are kept
        table, said = sentences_of(described, imagenet_names()), [SAID[n % 4] for n in range(19)] + ["the Eiffel tower"]
        maps, _ = linear_maps(rows[:20], sentences_of(described, said), np.arange(20), table, 8)
        expected = (rows - maps.image_mean) @ maps.image
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(taught @ taught.T, expected @ expected.T, atol=5e-3)
        assert np.abs(before - taught).max() > 0.1
        (hit,) = engine.search("Eiffel", top_k=1)
        assert hit.id == "19.jpg" and len(hit.matched) == 1
        assert engine.undo() == "19.jpg" and engine.undo() is None
        maps = maps_of_names(table, rows[:, 1280:].mean(0), 1280, 8)
        expected = (rows - maps.image_mean) @ maps.image
        expected, found = expected / np.linalg.norm(expected, axis=1, keepdims=True), embedded(engine)
        np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=5e-3)
        assert not engine.search("Eiffel", top_k=1)[0].matched
        refusal(MissingItemError, engine.teach, "../secret.jpg", "a dog")
        assert names(refusal(IndexFormatError, Teacher, tmp_path / "index", model), "being written by process")
    assert len((tmp_path / "photos" / "metadata.jsonl").read_text().splitlines()) == 19


@pytest.mark.medium
def test_the_index_on_the_disk_follows_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out = make_index(tmp_path, 24, 19), tmp_path / "index"
    first = SearchEngine(model, out)
    first.teach(tmp_path / "photos" / "20.jpg", ["grass", "a red dog"])
    taught = embedded(first)
    with monkeypatch.context() as patched:
        patched.setattr(writer, "sync", lambda path: 1 / 0)
        refusal(ZeroDivisionError, first.close)
    assert Index.open(out, check=True).manifest.model == model.fingerprint
    first._teacher.close()
    index = Index.open(out, check=True)
    found = load_as(TwoTower, find_model(out)[0])
    assert index.manifest.model == found.fingerprint != model.fingerprint
    np.testing.assert_allclose(index.vectors[:, 0], taught, atol=1e-6)
    images = found.encode_image(sorted((tmp_path / "photos").glob("*.jpg"))).vectors[:, 0].numpy()
    np.testing.assert_allclose(images, taught, atol=0.02)
    assert [each.name for each in out.glob("model*")] == [f"model-{found.fingerprint}"]
    report = build_index(found, tmp_path / "photos", out)
    assert (report.reused, report.described) == (24, 0), "the words that were noted are those of the file"
    again = Teacher(out, found)
    assert again.captions["20.jpg"] == ["grass", "a red dog"]
    again.close()
    assert Index.open(out).manifest.model == found.fingerprint


@pytest.mark.medium
def test_ridge_and_share_stay_until_it_is_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out = make_index(tmp_path, 28, 24), tmp_path / "index"
    given: list[Any] = []
    whole = linear_maps
    monkeypatch.setattr(teacher_module, "linear_maps", lambda *a, like, **k: (given.append(like), whole(*a, **k))[1])
    teacher = Teacher(out, model)
    for number in range(24, 28):
        teacher.teach(f"{number}.jpg", "a red dog")
    teacher.close()
    assert [like is None for like in given] == [True, False, False, False, False, True]


@pytest.mark.medium
def test_a_model_that_was_trained_beside_is_used_if_it_is_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out, run = make_index(tmp_path, 24, 20), tmp_path / "index", tmp_path / "prepared" / "run"
    small_model(width=4).save(run / "best")
    script = tmp_path / "python"  # in place of `python -m openvse train folder data.source=... --overwrite --out RUN`
    script.write_text(
        f"#!/bin/sh\necho $5\nread line || echo epoch 1\ncp -r {run.parent}/* $(dirname $8)\nexit $(cat {run}/rc)"
    )
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    teacher = Teacher(out, model)
    assert names(refusal(DataError, teacher.train), "20 captioned images are too few to train: caption 400")
    monkeypatch.setattr(teacher_module, "ENOUGH_TO_TRAIN", 20)

    def trained(rc: int, best_epoch: int) -> str:
        (run / "rc").write_text(str(rc))
        record = {"best_epoch": best_epoch, "metrics": {"rsum": {"before": 210.04, "after": 222.5}}}
        (run / "before_after.json").write_text(json.dumps(record))
        teacher.train()
        while teacher.progress()["is_training"]:
            time.sleep(0.01)
        return str(teacher.progress()["training"])

    assert trained(3, 2) == "the training failed: epoch 1"
    assert trained(0, 0) == "RSUM on validation was 210.0 and is 222.5 after training: the model stays as it was"
    assert teacher.model.fingerprint == "taught-1" and Index.open(out).manifest.model == model.fingerprint
    assert trained(0, 2) == "RSUM on validation was 210.0 and is 222.5 after training: the search uses the new model"
    found, index = teacher.present(Index.open(out, check=True))
    expected = found.encode_image(sorted((tmp_path / "photos").glob("*.jpg"))).vectors[:, 0]
    assert index.manifest.dim == 4 and index.manifest.model == found.fingerprint
    np.testing.assert_allclose(index.vectors[:, 0], expected, atol=1e-3)
    teacher.teach("20.jpg", "Zanzibar")
    teacher.close()
    with SearchEngine(found, out) as engine:
        assert next(hit.id for hit in engine.search("Zanzibar", top_k=1) if hit.matched) == "20.jpg"
        np.testing.assert_allclose(embedded(engine), expected, atol=1e-3)


@pytest.mark.medium
def test_descriptions_make_the_index_that_the_images_make(tmp_path: Path) -> None:
    model, photos = small_model(), write_folder(tmp_path / "photos", 5, 0)
    (tmp_path / "index").mkdir()
    described = describe_folder(model, photos, tmp_path / "index", None)
    assert described is not None
    assert build_index(model, photos, tmp_path / "index", stored=described).stored == 5
    build_index(model, photos, tmp_path / "other")
    one, other = (Index.open(tmp_path / name).vectors for name in ("index", "other"))
    np.testing.assert_allclose(one, other, atol=0.01)
    (photos / "01.jpg").write_bytes((photos / "02.jpg").read_bytes())
    status = (photos / "01.jpg").stat()
    assert described.find(photos / "01.jpg", status.st_mtime_ns, status.st_size) is None


@pytest.mark.medium
def test_a_model_that_does_not_learn_has_its_words(tmp_path: Path) -> None:
    from tests.serving.conftest import make_model

    model, photos = make_model(0), write_folder(tmp_path / "photos", 4, 0)
    build_index(model, photos, tmp_path / "index")
    with SearchEngine(model, tmp_path / "index") as engine:
        before = embedded(engine)
        engine.teach("02.jpg", "Zanzibar")
        assert [hit.id for hit in engine.search("zanzibar", top_k=4) if hit.matched] == ["02.jpg"]
        np.testing.assert_array_equal(embedded(engine), before)
    line = json.loads((photos / "metadata.jsonl").read_text())
    assert line == {"file_name": "02.jpg", "captions": ["Zanzibar"]}
