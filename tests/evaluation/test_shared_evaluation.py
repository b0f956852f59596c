"""An evaluation by several processes gives the report of one, to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from openvse.cli.app import app
from openvse.evaluation.processes import ALONE, Processes
from openvse.retrieval.build import build_model
from tests.forking import side_by_side
from tests.tiny import tiny_recipe, write_tiny_corpus


def test_turns_follow_the_order_of_the_tasks() -> None:
    assert list(ALONE.take_turns(range(5), lambda task: task * task)) == [(n, n * n) for n in range(5)]
    done: dict[int, list[int]] = {0: [], 1: []}
    for rank, mine in done.items():

        class Pair(Processes):
            def gather(self, one):  # the other process does the same with its task
                return [one, one]

        for _ in Pair(rank, 2).take_turns(range(5), mine.append):
            pass
    assert done == {0: [0, 2, 4], 1: [1, 3]}


@pytest.mark.slow
def test_two_processes_evaluate_as_one(tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus", train=40)
    torch.manual_seed(0)
    model = build_model(tiny_recipe(corpus), captions=["red dog runs", "green cat sits"]).save(
        tmp_path / "model"
    )
    options = ["--on", corpus / "tiny.csv", "--split", "train", "--features", corpus / "features"]
    evaluate = [*map(str, ("evaluate", model, *options)), "--batch-size", "3", "--every", "--json"]
    alone = CliRunner().invoke(app, evaluate)
    assert alone.exit_code == 0, alone.output
    shared, nothing = side_by_side(tmp_path, 2, *evaluate)
    assert nothing == ""
    reports = [json.loads(told)["result"]["report"] for told in (alone.stdout, shared)]
    assert reports[0]["protocol"]["num_images"] == 40
    assert reports[0] == reports[1]
