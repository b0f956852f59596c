import os
from pathlib import Path

import numpy as np
import pytest
import torch

from colour_model import ColourModel, Pixels, paint
from openvse.errors import BadImageError, DataError, IndexFormatError, ModelError
from openvse.files import LOCK
from openvse.indexing import Index, build_index
from openvse.indexing.build import IndexReport
from openvse.indexing.manifest import IndexSettings
from openvse.pipeline import WorkProgress
from openvse.types import EmbeddingSet
from tests.naming import names, refusal


def ids(folder: Path) -> list[str]:
    return [item.id for item in Index.open(folder).items]


def test_every_image_is_embedded_once_and_in_order(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    assert build_index(model, photos, tmp_path / "index", batch_size=3) == IndexReport(count=4, reused=0, failed=[])
    assert [len(batch) for batch in model.batches] == [3, 1]
    assert ids(tmp_path / "index") == ["blue.png", "deeper/white.png", "green.png", "red.png"]
    index = Index.open(tmp_path / "index", model.fingerprint)
    assert index.manifest.gaussians is False
    expected = model.encode_image([index.image_path(position) for position in range(4)]).vectors
    assert np.array_equal(index.vectors, expected.numpy())


def test_only_what_changed_is_embedded_again(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    build_index(model, photos, tmp_path / "index")
    model.batches.clear()
    paint(photos / "a.png", "white")
    paint(photos / "red.png", "blue")
    os.utime(photos / "red.png", ns=(1, 1))
    (photos / "green.png").unlink()
    report = build_index(model, photos, tmp_path / "index")
    assert (report.count, report.reused) == (4, 2)
    assert model.encoded == ["a.png", "red.png"]
    build_index(ColourModel(), photos, tmp_path / "fresh")
    again, fresh = Index.open(tmp_path / "index"), Index.open(tmp_path / "fresh")
    assert again.items == fresh.items
    assert np.array_equal(again.vectors, fresh.vectors)


def test_new_images_share_full_batches(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    build_index(model, photos, tmp_path / "index")
    model.batches.clear()
    for name in ("a", "cc", "f", "zz"):
        paint(photos / f"{name}.png", "red")
    build_index(model, photos, tmp_path / "index", batch_size=2)
    assert [len(batch) for batch in model.batches] == [2, 2]
    assert ids(tmp_path / "index") == sorted(ids(tmp_path / "index"))


def test_a_run_over_unchanged_images_writes_nothing(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    build_index(model, photos, tmp_path / "index")
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in (tmp_path / "index").iterdir()}
    seen: list[WorkProgress] = []
    assert build_index(model, photos, tmp_path / "index", progress=seen.append).reused == 4
    assert [(state.done, state.total) for state in seen] == [(4, 4)]
    after = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in before}
    assert {path.name for path in before if before[path] != after[path]} == {LOCK}


@pytest.mark.parametrize("change", ["model", "dtype"])
def test_another_model_or_number_format_starts_anew(
    model: ColourModel, photos: Path, tmp_path: Path, change: str
) -> None:
    build_index(model, photos, tmp_path / "index")
    other = ColourModel("colours-2") if change == "model" else ColourModel()
    dtype = "float16" if change == "dtype" else "float32"
    assert (
        build_index(other, photos, tmp_path / "index", settings=IndexSettings(dtype=dtype), overwrite=True).reused == 0
    )
    assert len(other.encoded) == 4
    assert len(Index.open(tmp_path / "index", other.fingerprint)) == 4


def test_a_moved_folder_is_found_again(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    build_index(model, photos, tmp_path / "index")
    moved = photos.rename(tmp_path / "moved")
    assert build_index(model, moved, tmp_path / "index").reused == 4
    assert Index.open(tmp_path / "index").image_path(0) == moved / "blue.png"


def test_bad_images_are_reported_and_left_out(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    (photos / "c.jpg").write_bytes(b"")
    (photos / "h.jpg").write_bytes(b"no image")
    (photos / "gone.jpg").symlink_to(photos / "nowhere.jpg")
    report = build_index(model, photos, tmp_path / "index", batch_size=3)
    assert report.count == 4
    assert sorted(path.name for path, reason in report.failed if reason) == ["c.jpg", "gone.jpg", "h.jpg"]
    assert ids(tmp_path / "index") == ["blue.png", "deeper/white.png", "green.png", "red.png"]


def test_progress_counts_every_image(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    (photos / "c.jpg").write_bytes(b"")
    seen: list[WorkProgress] = []
    build_index(model, photos, tmp_path / "index", batch_size=2, progress=seen.append)
    assert [state.done for state in seen] == [2, 4, 5]
    assert {state.total for state in seen} == {5}
    assert all(state.per_s > 0 for state in seen)


def test_nothing_to_index(model: ColourModel, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert names(refusal(DataError, build_index, model, tmp_path / "empty", tmp_path / "index"), "empty")
    assert names(refusal(DataError, build_index, model, tmp_path / "nowhere", tmp_path / "index"), "nowhere")
    assert names(refusal(DataError, build_index, model, tmp_path / "captions.txt", tmp_path / "index"), "captions.txt")
    (tmp_path / "empty" / "a.mp4").touch()
    assert names(refusal(DataError, build_index, model, tmp_path / "empty", tmp_path / "index"), "empty", " 1 ")
    assert not (tmp_path / "index").exists()


def test_nothing_usable_to_index(model: ColourModel, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"")
    assert names(refusal(DataError, build_index, model, tmp_path / "photos", tmp_path / "index"), "1 images")
    assert names(refusal(IndexFormatError, Index.open, tmp_path / "index"), "index.json")


def test_a_model_without_an_index_is_refused(photos: Path, tmp_path: Path) -> None:
    refusal(ModelError, lambda: build_index(ColourModel(indexable=False), photos, tmp_path / "index"))


class RaggedModel(ColourModel):
    """Says that it can be indexed, but leaves embeddings out."""

    def embed(self, colours: np.ndarray) -> EmbeddingSet:
        whole = super().embed(colours)
        return EmbeddingSet(whole.vectors, torch.zeros_like(whole.mask))


class GrowingModel(ColourModel):
    """Makes one more embedding with every batch."""

    def embed(self, colours: np.ndarray) -> EmbeddingSet:
        self.num_embeddings += 1
        return super().embed(colours)


@pytest.mark.parametrize("kind", [RaggedModel, GrowingModel])
def test_a_varying_number_of_embeddings_is_refused(kind: type[ColourModel], photos: Path, tmp_path: Path) -> None:
    refusal(ModelError, lambda: build_index(kind(), photos, tmp_path / "index", batch_size=1))
    assert not (tmp_path / "index").exists()


class FussyModel(ColourModel):
    """Refuses images that can be read."""

    def read_image(self, image: Path) -> Pixels:
        raise BadImageError("too small for this model")


def test_a_refusal_of_every_image_gives_its_reason(photos: Path, tmp_path: Path) -> None:
    assert names(refusal(DataError, lambda: build_index(FussyModel(), photos, tmp_path / "index")), "too small")


def test_a_bad_image_is_decoded_once_as_all_others_are(model: ColourModel, tmp_path: Path) -> None:
    for number in range(64):
        paint(tmp_path / "photos" / f"{number:02d}.png", "red")
    (tmp_path / "photos" / "20.png").write_bytes(b"no image")
    report = build_index(model, tmp_path / "photos", tmp_path / "index", batch_size=64)
    assert (report.count, len(report.failed)) == (63, 1)
    assert sorted(model.reads) == [f"{number:02d}.png" for number in range(64)]
    assert [len(batch) for batch in model.batches] == [63]


def test_a_place_that_cannot_be_written(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(IndexFormatError, match="index|file"):
        build_index(model, photos, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_full_disk_leaves_the_old_index(
    model: ColourModel, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(model, photos, tmp_path / "index")

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    paint(photos / "new.png", "red")
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(IndexFormatError, match="index|file"):
        build_index(model, photos, tmp_path / "index")
    assert len(Index.open(tmp_path / "index")) == 4
    assert len(list((tmp_path / "index").iterdir())) == 4  # three of the index, and its lock


def test_what_is_left_out_is_counted(model: ColourModel, photos: Path, tmp_path: Path) -> None:
    for name in ("clip.mp4", "logo.svg", "two\nlines.png"):
        (photos / name).touch()
    report = build_index(model, photos, tmp_path / "index")
    assert report.count == 4 and report.failed == []
    assert sorted(report.left_out.files) == ["SVG", "video", "with a line break in the name"]
