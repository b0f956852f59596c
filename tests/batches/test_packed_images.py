"""Images in archives and tables reach a model as files do, in worker processes too."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from openvse.batches.pairs import image_batches, image_loader
from openvse.datasets import open_corpus
from openvse.features.extract import extract_features
from openvse.features.store import FeatureStore
from toy_data import MeanColour

GREYS = (0, 40, 80, 120)


def png(grey: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (grey,) * 3).save(file, "PNG")
    return file.getvalue()


def archive(path):
    with tarfile.open(path / "s.tar", "w") as shard:
        for number, grey in enumerate(GREYS):
            for ending, data in (("png", png(grey)), ("txt", b"a caption")):
                info = tarfile.TarInfo(f"{number}.{ending}")
                info.size = len(data)
                shard.addfile(info, io.BytesIO(data))
    return path


def parquet(path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    images = [{"bytes": png(grey), "path": f"{number}.png"} for number, grey in enumerate(GREYS)]
    pq.write_table(pa.table({"image": images, "caption": ["a caption"] * 4}), path / "x.parquet", row_group_size=2)
    return path


@pytest.mark.parametrize("write", [archive, parquet])
def test_batches_of_packed_images(tmp_path, write):
    corpus = open_corpus(write(tmp_path))
    images = image_loader(MeanColour(), corpus, None)
    seen = {
        int(position): round(float(values.mean()))
        for positions, inputs in image_batches(images, 2)
        for position, values in zip(positions, inputs.values, strict=True)
    }
    assert tuple(seen[number] for number in range(4)) == GREYS


@pytest.mark.parametrize("write", [archive, parquet])
def test_features_of_packed_images(tmp_path, write):
    corpus = open_corpus(write(tmp_path))
    images = list(zip(corpus.image_ids, corpus.image_paths, strict=True))
    report = extract_features(MeanColour(), images, tmp_path / "store", num_workers=2)
    assert (report.done, report.failed) == (4, [])
    store = FeatureStore(tmp_path / "store")
    values = store.gather(store.positions(corpus.image_ids)).values.mean(dim=(1, 2)).numpy()
    np.testing.assert_allclose(values, GREYS)
