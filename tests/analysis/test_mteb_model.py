"""Our recall and MTEB's agree, for one embedding of an item and for several."""

from __future__ import annotations

import re
from pathlib import Path

import mteb
import pytest
import torch

from openvse.analysis.mteb_model import MTEBModel, mteb_task
from openvse.analysis.opening import Embedded
from openvse.datasets import open_corpus
from openvse.errors import OpenVSEError
from openvse.evaluation import embed_corpus, evaluate
from openvse.model import TwoTower
from tests.analysis.small import perturbed, plain, small_model
from tests.cli.album import write_album


def embedded(model: TwoTower, album: Path) -> Embedded:
    found = embed_corpus(model, open_corpus(album))
    return Embedded("model", model, found.corpus, found.images, found.texts)


def hit_rates(model: TwoTower, album: Path, direction: str) -> dict[int, float]:
    task = mteb_task(open_corpus(album), direction)
    result = mteb.evaluate(MTEBModel(model), task, cache=None, co2_tracker=False, show_progress_bar=False)
    scores = result.task_results[0].scores["test"][0]
    return {k: 100 * scores[f"hit_rate_at_{k}"] for k in (1, 5, 10)}


@pytest.mark.slow
@pytest.mark.parametrize("views", [1, 2])
def test_recall_agrees_with_mteb(tmp_path: Path, views: int) -> None:
    album = write_album(tmp_path / "album", 12)
    image = "gpo" if views == 1 else {"name": "multi_view", "num_views": views}
    model = perturbed(small_model(image), 1)
    own = embedded(model, album)
    metrics = evaluate(own.images, own.texts, own.corpus.relevance, model.similarity, resamples=0).metrics
    for direction in ("t2i", "i2t"):
        theirs = hit_rates(model, album, direction)
        for k, value in theirs.items():
            assert value == pytest.approx(metrics[f"{direction}_r{k}"], abs=0.01)
    assert 0 < metrics["t2i_r5"] < 100


@pytest.mark.medium
def test_scores_are_the_models(tmp_path: Path) -> None:
    album = write_album(tmp_path / "album", 4)
    model = small_model({"name": "multi_view", "num_views": 3})
    own = embedded(model, album)
    wrapped = MTEBModel(model)
    images = wrapped.encode(_batches(own))
    texts = wrapped.encode([{"text": list(own.corpus.captions)}])
    assert images.shape == (4, 48) and texts.shape == (len(own.corpus.captions), 16)
    expected = model.score(own.images, own.texts)
    torch.testing.assert_close(wrapped.similarity(images, texts), expected)
    torch.testing.assert_close(wrapped.similarity(texts, images), expected.T)
    torch.testing.assert_close(wrapped.similarity_pairwise(images, texts[:4]), expected[:, :4].diagonal())


def _batches(own: Embedded) -> list[dict[str, object]]:
    from openvse.media.images import read_image

    return [{"image": [read_image(path)]} for path in own.corpus.image_paths]


@pytest.mark.slow
def test_the_shown_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "analysis.md").read_text()
    (shown,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    write_album(tmp_path / "photos", 20)
    plain().save(tmp_path / "runs" / "mine" / "best")
    monkeypatch.chdir(tmp_path)
    exec(shown, {"__name__": "shown"})
    assert re.findall(r"^(\w+) 1.0$", capsys.readouterr().out, re.MULTILINE) == [
        "PhotosTestT2I",
        "PhotosTestI2T",
    ]


def test_what_mteb_cannot_score_is_refused() -> None:
    tokens = {"name": "tokens"}
    model = small_model(tokens, tokens, similarity={"name": "fused", "fusion": {"name": "score_attention"}})
    with pytest.raises(OpenVSEError, match="scores"):
        MTEBModel(model, "me/mine")
    with pytest.raises(OpenVSEError, match="nothing"):
        MTEBModel(plain()).encode([{}])
