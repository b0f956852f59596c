"""Which images and captions a model of distributions is the least sure of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from openvse.analysis.embeddings import UNCERTAINTY, analyze_embeddings
from openvse.analysis.opening import embed_all
from openvse.analysis.uncertainty import percentiles
from openvse.training.kind import Request
from tests.analysis.small import named, small_model
from tests.cli.album import write_album


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_album(tmp_path_factory.mktemp("drawn") / "album", 12)


def test_percentiles_are_equal_parts() -> None:
    assert percentiles(np.array([0.3, 0.1, 0.2, 0.1])).tolist() == [75, 0, 50, 25]


@pytest.mark.medium
def test_the_most_uncertain_items_come_first(album: Path, tmp_path: Path) -> None:
    gaussian = {"name": "gaussian", "start": -3.0}
    model = small_model(gaussian, gaussian, similarity="csd", objective={"ranking": {"name": "pcmepp"}})
    for side in (model.image, model.text):
        side.aggregator.to_log_variance.weight.data.normal_(std=0.1)  # type: ignore[union-attr, operator]
    plain = small_model()
    embedded = embed_all(named(model, "unsure") | named(plain, "sure"), Request(str(album), "all"))
    found = analyze_embeddings(embedded, places=True)
    table = found.tables["uncertainty"].rows
    assert {row[:2] for row in table} == {("unsure", "image"), ("unsure", "text")}
    items = {"image": embedded[0].images, "text": embedded[0].texts}
    names = {"image": embedded[0].corpus.image_ids, "text": embedded[0].corpus.captions}
    for side, each in items.items():
        assert each.residual is not None
        sums = each.residual[:, 0].exp().sum(dim=1).numpy()
        rows = [row for row in table if row[1] == side]
        assert [row[3] for row in rows] == pytest.approx(np.sort(sums)[::-1], rel=1e-5)
        assert rows[0][2] == names[side][int(sums.argmax())]
    grouped = [row for row in found.tables["recall"].rows if row[1] == UNCERTAINTY]
    assert {row[0] for row in grouped} == {"unsure"} and sum(row[3] for row in grouped) == len(names["text"])
    assert {"embeddings_uncertainty.png", "embeddings_uncertainty.csv"} <= {
        path.name for path in found.write(tmp_path)
    }
