"""``openvse analyze`` on the shared run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.naming import names

KINDS = (
    "coefficients", "attention", "hits", "answers", "views", "captions", "embeddings",
)  # fmt: skip


@pytest.mark.medium
def test_the_help_lists_every_kind(invoke) -> None:
    text = invoke("analyze", "--help").output
    assert max(map(len, text.splitlines())) <= 80
    assert set(re.findall(r"^│ ([a-z-]+) ", text, re.MULTILINE)) == {*KINDS, "--help"}
    for kind in KINDS:
        assert max(map(len, invoke("analyze", kind, "--help").output.splitlines())) <= 80


@pytest.mark.medium
def test_figures_and_tables(works, trained: Path, tmp_path: Path) -> None:
    run, album, out = trained / "run", trained / "album", tmp_path / "out"
    result = works("analyze", "coefficients", run, "--size", 4, "--out", out)
    assert result.stdout.split()[:3] == ["model", "side", "size"]
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert f"written: {out / 'coefficients.csv'}" in result.stderr
    words = ["--on", album, "--split", "all", "--out", out, "-q"]
    result = works("analyze", "hits", run, *words, "--json")
    document = json.loads(result.stdout)
    assert document["command"] == "analyze hits"
    assert len(document["result"]["tables"]["hits"]) == 2 * 3 * 5
    assert document["warnings"]
    assert str(out / "hits_image_to_text.svg") in document["result"]["files"]
    for kind in ("embeddings", "attention"):
        result = works("analyze", kind, run, *words)
    words[words.index("all")] = "test"
    result = works("analyze", "captions", run, *words)
    assert {path.suffix for path in out.iterdir()} == {".csv", ".png", ".svg"}


@pytest.mark.medium
def test_what_is_refused(refused, trained: Path, tmp_path: Path) -> None:
    run, album, out = trained / "run", trained / "album", tmp_path / "out"
    on = ["--on", album, "--out", out, "-q"]
    for words, named in (
        (("views", run, *on), "views"),
        (("hits", run, run, *on), run.name),
        (("attention", run, "--out", out), "--on DATA"),
        (("captions", *on), "captions"),
        (("answers", run, *on), "answers"),
        (("hits", tmp_path / "no", *on), tmp_path / "no"),
    ):
        assert names(refused("analyze", *words), named)
    assert "--seeds" in refused("sweep", trained / "tiny.yaml", "--seeds", "a", "--out", out)
    assert "rsun" in refused("sweep", trained / "tiny.yaml", "--metric", "rsun", "--out", out)
    assert not out.exists()  # nothing is left behind
    out.mkdir()
    (out / "hits.csv").touch()
    assert names(refused("analyze", "hits", run, *on), "hits.csv", "--out", "--overwrite")
    assert (out / "hits.csv").read_text() == ""


@pytest.mark.slow
def test_a_sweep_goes_on(invoke, works, trained: Path, tmp_path: Path) -> None:
    words = ["sweep", trained / "tiny.yaml", "training.phases=[{epochs: 1}]",
             "image.aggregator=mean,{name: k_max, k: 2}", "text.aggregator=max", "--out", tmp_path]  # fmt: skip
    assert "{name: k_max, k: 2}" in works(*words).stdout
    again = invoke(*words, "--overwrite", "--json")
    document = json.loads(again.stdout)
    assert document["command"] == "sweep" and "epoch" not in again.stderr
    assert [row["image.aggregator"] for row in document["result"]["summary"]] == ["mean", "{name: k_max, k: 2}"]
    (store,) = (tmp_path / "runs" / "stores").iterdir()
    assert (store / "features").is_dir()
