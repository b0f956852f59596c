"""Extraction by several processes: the same store, bit for bit, whoever is first and whatever is interrupted."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from encoders.conftest import bert_checkpoint  # noqa: F401 - a fixture
from openvse.backbones.efficientnet_lite import EfficientNetLite0
from openvse.encoders import TransformersText
from openvse.errors import OpenVSEError
from openvse.features.extract import extract_features, extract_text_features
from openvse.features.store import FeatureStore
from openvse.pipeline import Workers, WorkProgress
from tests.pickled_work import PickledWork, pickled_work

BATCH = 2
TEXTS = [f"{'a very ' * (number % 5)}red dog number {number}" for number in range(9)]


@pytest.fixture
def backbone() -> EfficientNetLite0:
    torch.manual_seed(0)
    return EfficientNetLite0(pretrained=False, image_size=32)


@pytest.fixture
def images(tmp_path: Path) -> list[tuple[str, Path]]:
    """17 images, three of them broken."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(17):
        path = folder / f"{number:02d}.png"
        if number in (1, 6, 7):
            path.write_text("no image")
        else:
            Image.new("RGB", (40, 32), (15 * number, 255 - 9 * number, 60)).save(path)
    return [(path.name, path) for path in sorted(folder.iterdir())]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openvse.features.extract.ITEMS_IN_PART", 5)  # two batches


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> PickledWork:
    return pickled_work(monkeypatch)


def content(store: Path) -> dict[str, bytes]:
    """Return the bytes of all files of a store."""
    return {path.name: path.read_bytes() for path in store.iterdir() if path.name != "writer.lock"}


@pytest.mark.medium
@pytest.mark.usefixtures("small_parts")
def test_processes_make_the_same_store(
    backbone: EfficientNetLite0, images: list[tuple[str, Path]], work: PickledWork, tmp_path: Path
) -> None:
    here = extract_features(backbone, images, tmp_path / "here", batch_size=BATCH)
    expected = content(tmp_path / "here")
    report = extract_features(backbone, images, tmp_path / "shared", batch_size=BATCH, workers=Workers(4))
    assert content(tmp_path / "shared") == expected and len(work.taken) == 5
    assert (report.done, sorted(report.failed)) == (here.done, sorted(here.failed))

    def stop(state: WorkProgress) -> None:
        raise KeyboardInterrupt

    for workers in (Workers(1), None):
        place = tmp_path / f"stopped {workers is None}"
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                extract_features(backbone, images, place, batch_size=BATCH, workers=workers, progress=stop)
        begun = len(FeatureStore(place))
        assert 0 < begun < here.done
        extract_features(backbone, images, place, batch_size=BATCH, workers=Workers(2))
        assert content(place) == expected


@pytest.mark.medium
@pytest.mark.usefixtures("small_parts")
def test_texts_too(bert_checkpoint: str, work: PickledWork, tmp_path: Path) -> None:  # noqa: F811
    encoder = TransformersText(embed_dim=8, model=bert_checkpoint, fine_tune=False)
    extract_text_features(encoder, TEXTS, tmp_path / "here", batch_size=BATCH)
    extract_text_features(encoder, TEXTS, tmp_path / "shared", batch_size=BATCH, workers=Workers(1))
    assert content(tmp_path / "shared") == content(tmp_path / "here") and work.taken


@pytest.mark.medium
def test_a_backbone_that_cannot_be_sent_is_refused(
    backbone: EfficientNetLite0, images: list[tuple[str, Path]], tmp_path: Path
) -> None:
    backbone.callback = lambda: None  # type: ignore[assignment]
    with pytest.raises(OpenVSEError):
        extract_features(backbone, images, tmp_path / "store", workers=Workers(2))
