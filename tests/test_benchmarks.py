"""Benchmarks run without arguments, and those that repeat a figure or a table of a paper measure what they say."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from openvse.errors import OpenVSEError
from tests.naming import names, refusal
from tests.papers.analysis.small import plain, small_model

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def script(name: str, monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(name)


def test_make_bench_can_run_each() -> None:
    needed = re.compile(r'required=True|add_argument\("\w+"(?!.*nargs)')
    assert [path.name for path in BENCHMARKS.glob("[a-z]*.py") if needed.search(path.read_text())] == []


@pytest.mark.medium
def test_times_grow_with_the_gallery(monkeypatch) -> None:
    times = script("retrieval_time", monkeypatch)
    calls: list[int] = []
    assert len(times.time_calls(lambda: calls.append(1), 3)) == 3 and len(calls) == 4
    tokens = {"name": "tokens"}
    fused = small_model(tokens, tokens, similarity={"name": "fused", "fusion": {"name": "score_attention"}})
    views = small_model({"name": "multi_view", "num_views": 2})
    towers = {"one": plain(), "two": views, "pairs": fused}
    timed = times.time_retrieval(towers, [50, 10], repeats=1, tokens=5)
    assert [(t.name, t.kind, t.size) for t in timed] == [
        ("one", "1 embedding", 10), ("one", "1 embedding", 50),
        ("two", "2 embeddings", 10), ("two", "2 embeddings", 50),
        ("pairs", "pairs, 5 tokens", 10), ("pairs", "pairs, 5 tokens", 50),
    ]  # fmt: skip
    assert all(t.low <= t.seconds <= t.high for t in timed)


@pytest.mark.medium
def test_poolings_are_timed(monkeypatch) -> None:
    speed = script("pooling_speed", monkeypatch)
    poolings = ["mean", "gpo", "pie_net", "lip", "k_max+mean"]
    assert {"lip", "k_max+mean"} < {*speed.POOLINGS}
    speeds = speed.time_poolings(poolings, elements=3, width=8, batch=3, repeats=1)
    assert [each.name for each in speeds] == poolings
    assert all(each.forward > 0 and each.training > 0 for each in speeds)
    assert names(refusal(OpenVSEError, speed.time_poolings, ["gpoo"]), "gpoo")


def test_an_answer_is_right_if_its_index_was_current(monkeypatch) -> None:
    changing = script("changing", monkeypatch)
    first, second = ({"a red dog": {name: 0.5}} for name in ("a.jpg", "b.jpg"))
    versions = [changing.Version(0.0, first), changing.Version(100.0, second)]
    old, new, other = ({name: 0.5} for name in ("a.jpg", "b.jpg", "c.jpg"))
    asked = [(10.0, old), (10.0, new), (102.0, old), (102.0, new), (150.0, old), (150.0, new), (150.0, other)]
    none = float("inf")
    found = [(when, when + 1, "a red dog", hits) for when, hits in asked]
    assert changing.ages_of(found, versions) == [0.0, none, 2.0, 0.0, 50.0, 0.0, none]
