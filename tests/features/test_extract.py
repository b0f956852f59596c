"""Extraction: the right features under the right ids, bad pictures reported, stopped and continued."""

import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from openvse.backbones import Backbone
from openvse.backbones.base import all_real
from openvse.batches.pairs import with_features
from openvse.corpus.corpus import Record, build_corpus
from openvse.errors import DataError, ModelError, StoreError
from openvse.features.extract import ExtractionReport, FeatureStoreWriter, extract_features
from openvse.features.store import FeatureStore
from openvse.media.images import read_image
from openvse.media.videos import ClipSource
from openvse.pipeline import WorkProgress
from openvse.types import Features, Inputs
from tests.naming import refusal

PhotoMaker = Callable[..., list[Path]]
SIDE = 4


class TinyBackbone(Backbone):
    """Its local features are the pixels of a 4 x 4 thumbnail; it remembers what it was asked."""

    def __init__(self, fingerprint: str | None = "tiny", pause_s: float = 0.0, *, trains: bool = False) -> None:
        super().__init__(nn.Identity(), feature_dim=3, fingerprint=fingerprint)
        self.fine_tune = trains
        self.pause_s = pause_s
        self.preprocessed = 0
        self.batches: list[int] = []
        self.lead = 0
        self.spoilt = False
        self._lock = threading.Lock()

    def read(
        self,
        source: ClipSource,
        generator: torch.Generator | None = None,
        *,
        to_store: bool = False,
        exact: bool = True,
    ) -> Float[Tensor, "3 H W"]:
        assert generator is None and to_store and exact, "a random view was stored"
        return super().read(source)

    def preprocess(self, image: Image.Image) -> Float[Tensor, "3 H W"]:
        with self._lock:
            self.preprocessed += 1
        thumbnail = np.asarray(image.resize((SIDE, SIDE)), dtype=np.float32)
        return torch.from_numpy(thumbnail.copy()).permute(2, 0, 1) / 255

    def see(self, inputs: Inputs) -> Features:
        pixels = inputs.values
        assert not self.training and torch.is_inference_mode_enabled()
        self.lead = max(self.lead, self.preprocessed - sum(self.batches))
        self.batches.append(len(pixels))
        time.sleep(self.pause_s)
        features = pixels.flatten(2).transpose(1, 2)
        return all_real(features * float("nan") if self.spoilt else features)


def named(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    return [(path.name, path) for path in paths]


def expected_features(paths: Sequence[Path]) -> Tensor:
    """Encode one picture after the other."""
    encoder = TinyBackbone()
    pixels = [encoder.preprocess(read_image(path)) for path in paths]
    return torch.stack([p.flatten(1).T for p in pixels]).half().float()


def stored_features(store: Path, paths: Sequence[Path]) -> Tensor:
    reader = FeatureStore(store, "tiny")
    return reader.gather(reader.positions([path.name for path in paths])).values


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_every_picture_gets_its_own_features(
    tmp_path: Path, make_photos: PhotoMaker, num_workers: int, batch_size: int
) -> None:
    paths = make_photos(7)
    encoder, store = TinyBackbone(), tmp_path / "store"
    report = extract_features(encoder, named(paths), store, batch_size=batch_size, num_workers=num_workers)
    assert (report.done, report.skipped_existing, report.failed) == (7, 0, [])
    assert report.seconds > 0 and report.images_per_s == pytest.approx(7 / report.seconds)
    assert FeatureStore(store).ids == tuple(path.name for path in paths), "in the order given"
    assert torch.equal(stored_features(store, paths), expected_features(paths))
    assert max(encoder.batches) <= batch_size and sum(encoder.batches) == 7


def test_only_what_is_new_is_done(tmp_path: Path, make_photos: PhotoMaker) -> None:
    paths = make_photos(6)
    store = tmp_path / "store"
    extract_features(TinyBackbone(), named(paths[::2]), store)
    encoder = TinyBackbone()
    report = extract_features(encoder, [(item, str(path)) for item, path in named(paths)], str(store))
    assert (report.done, report.skipped_existing) == (3, 3)
    assert encoder.preprocessed == 3
    assert torch.equal(stored_features(store, paths), expected_features(paths))
    again = TinyBackbone()
    assert extract_features(again, named(paths), store).skipped_existing == 6
    assert again.preprocessed == 0


def test_bad_pictures_are_reported_and_left_out(tmp_path: Path, make_photos: PhotoMaker) -> None:
    paths = make_photos(5)
    paths[1].write_bytes(b"")
    paths[2].write_text("not a picture")
    paths.append(tmp_path / "nowhere.jpg")
    store = tmp_path / "store"
    report = extract_features(TinyBackbone(), named(paths), store, batch_size=2)
    bad = [paths[1], paths[2], paths[5]]
    assert report.done == 3
    assert [path for path, _ in report.failed] == bad
    for path, reason in report.failed:
        assert reason and str(path) not in reason and "\n" not in reason
    good = [path for path in paths if path not in bad]
    assert torch.equal(stored_features(store, good), expected_features(good))
    make_photos(2)  # repairs photo_1
    repaired = extract_features(TinyBackbone(), named(paths), store)
    assert (repaired.done, repaired.skipped_existing, len(repaired.failed)) == (1, 3, 2)


def test_a_batch_without_a_good_picture(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.jpg" for i in range(4)]
    encoder = TinyBackbone()
    report = extract_features(encoder, named(paths), tmp_path / "store", batch_size=2)
    assert report.done == 0 and len(report.failed) == 4 and encoder.batches == []
    assert len(FeatureStore(tmp_path / "store")) == 0


def test_progress_counts_up_to_the_total(tmp_path: Path, make_photos: PhotoMaker) -> None:
    paths = make_photos(7)
    paths[4].write_bytes(b"")
    store = tmp_path / "store"
    extract_features(TinyBackbone(), named(paths[:2]), store)
    seen: list[WorkProgress] = []
    extract_features(TinyBackbone(), named(paths), store, batch_size=2, progress=seen.append)
    assert [state.done for state in seen] == [4, 6, 7]
    assert {state.total for state in seen} == {7}
    assert all(state.per_s > 0 for state in seen)


def test_progress_of_nothing(tmp_path: Path) -> None:
    seen: list[WorkProgress] = []
    report = extract_features(TinyBackbone(), [], tmp_path / "store", progress=seen.append)
    assert seen == [WorkProgress(0, 0, 0.0)]
    assert report.done == 0 and ExtractionReport().images_per_s == 0


def test_an_interrupted_extraction_continues(tmp_path: Path, make_photos: PhotoMaker) -> None:
    paths = make_photos(10)
    store = tmp_path / "store"

    def interrupt(state: WorkProgress) -> None:
        if state.done >= 4:
            raise KeyboardInterrupt

    encoder = TinyBackbone(trains=True).train()
    refusal(KeyboardInterrupt, extract_features, encoder, named(paths), store, batch_size=2, progress=interrupt)
    assert encoder.training, "the encoder is left as it was"
    assert len(FeatureStore(store)) == 4, "what was done is kept"
    report = extract_features(TinyBackbone(), named(paths), store)
    assert (report.done, report.skipped_existing) == (6, 4)
    assert torch.equal(stored_features(store, paths), expected_features(paths))


@pytest.mark.medium
def test_a_killed_extraction_continues(
    tmp_path: Path, make_photos: PhotoMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openvse.pipeline.KEEP_SECONDS", 0.0)
    paths = make_photos(40)
    store = tmp_path / "store"
    slow = TinyBackbone(pause_s=0.05)
    process = multiprocessing.get_context("fork").Process(
        target=extract_features, args=(slow, named(paths), store), kwargs={"batch_size": 2}
    )
    process.start()
    deadline = time.monotonic() + 30
    while not ((store / "store.json").exists() and len(FeatureStore(store)) >= 6):
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    kept = len(FeatureStore(store))
    assert 6 <= kept < 40
    report = extract_features(TinyBackbone(), named(paths), store)
    assert (report.done, report.skipped_existing) == (40 - kept, kept)
    assert torch.equal(stored_features(store, paths), expected_features(paths))


@pytest.mark.parametrize(("seconds", "commits"), [(0.0, 3), (1000.0, 0)])
def test_commits_follow_the_clock(
    tmp_path: Path, make_photos: PhotoMaker, monkeypatch: pytest.MonkeyPatch, seconds: float, commits: int
) -> None:
    monkeypatch.setattr("openvse.pipeline.KEEP_SECONDS", seconds)
    sizes = []
    commit = FeatureStoreWriter.commit

    def counting(self: FeatureStoreWriter) -> None:
        sizes.append(len(self))
        commit(self)

    monkeypatch.setattr(FeatureStoreWriter, "commit", counting)
    extract_features(TinyBackbone(), named(make_photos(6)), tmp_path / "store", batch_size=2)
    assert sizes == [*[2, 4, 6][:commits], 6], "and once at the end"


@pytest.mark.medium
def test_decoding_runs_ahead_but_not_away(tmp_path: Path, make_photos: PhotoMaker) -> None:
    encoder = TinyBackbone(pause_s=0.05)
    extract_features(encoder, named(make_photos(20)), tmp_path / "store", batch_size=2, num_workers=2)
    # Two batches wait at most, besides the one that is being encoded.
    assert 2 < encoder.lead <= 6


def test_an_encoder_that_makes_nan_is_named_with_its_picture(tmp_path: Path, make_photos: PhotoMaker) -> None:
    encoder = TinyBackbone()
    encoder.spoilt = True
    with pytest.raises(StoreError, match=r"'photo_0\.jpg'.*NaN"):
        extract_features(encoder, named(make_photos(2)), tmp_path / "store")


def test_one_id_for_two_pictures_is_refused(tmp_path: Path, make_photos: PhotoMaker) -> None:
    first, second = make_photos(2)
    with pytest.raises(DataError, match=r"'x'.*photo_0\.jpg.*photo_1\.jpg"):
        extract_features(TinyBackbone(), [("x", first), ("x", second)], tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_a_store_of_another_encoder_is_refused(tmp_path: Path, make_photos: PhotoMaker) -> None:
    images = named(make_photos(1))
    extract_features(TinyBackbone(), images, tmp_path / "store")
    with pytest.raises(StoreError, match="'tiny'.*'huge'"):
        extract_features(TinyBackbone("huge"), images, tmp_path / "store")
    with pytest.raises(StoreError, match="float16.*float32"):
        extract_features(TinyBackbone(), images, tmp_path / "store", dtype="float32")


def test_an_encoder_without_a_backbone_is_refused(tmp_path: Path) -> None:
    refusal(ModelError, extract_features, TinyBackbone(fingerprint=None), [], tmp_path / "store")
    assert not (tmp_path / "store").exists()


NAMES = tuple(f"{number}.png" for number in range(4))


@pytest.fixture
def images(tmp_path: Path) -> list[tuple[str, Path]]:
    (tmp_path / "images").mkdir()
    for number, name in enumerate(NAMES):
        Image.new("RGB", (8, 8), (60 * number, 0, 0)).save(tmp_path / "images" / name)
    return [(name, tmp_path / "images" / name) for name in NAMES]


@pytest.fixture
def backbone() -> Backbone:
    return TinyBackbone()


def test_changed_images_are_named(images: list[tuple[str, Path]], backbone: Backbone, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert extract_features(backbone, images, store).stale == ""
    assert extract_features(backbone, images, store).stale == ""
    Image.new("RGB", (8, 8), (0, 99, 0)).save(images[2][1])
    os.utime(images[2][1], ns=(1, 1))  # whatever its size is now
    report = extract_features(backbone, images, store)
    assert report.stale.startswith("1 image(s) have changed") and "(first: 2.png)" in report.stale
    corpus = build_corpus("some", [Record(name, path, ["a dot"]) for name, path in images])
    assert with_features(corpus, FeatureStore(store)).problems == (report.stale,)


def test_a_copy_of_the_images_is_the_same_and_another_size_is_not(
    images: list[tuple[str, Path]], backbone: Backbone, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    extract_features(backbone, images, store)
    shutil.copytree(tmp_path / "images", tmp_path / "copy", copy_function=shutil.copyfile)
    copied = [(name, tmp_path / "copy" / name) for name, _ in images]
    for _, path in copied:
        os.utime(path, ns=(5, 5))
    assert FeatureStore(store).stale(copied) == ""
    Image.new("RGB", (300, 200), (0, 99, 0)).save(copied[1][1])
    assert "1 image(s)" in FeatureStore(store).stale(copied)
    copied[1][1].unlink()  # features without their images
    assert FeatureStore(store).stale(copied) == ""
