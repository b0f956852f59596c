"""What can be listed, what the shell completes, and what a message says of many names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from openvse.datasets import DATASETS
from openvse.errors import choices, nearest
from openvse.tasks.front import registries
from openvse.train_cli.listing import DECIDED
from tests.leaf_commands import whole_program
from tests.naming import names

ANIMALS = ["ant", "bat", "bear", "bee", "beetle", "cat", "dog"]


def test_the_three_nearest_and_not_all() -> None:
    assert nearest("beee", ANIMALS) == "; did you mean 'bee' or 'beetle'?"
    assert nearest("bea", [*ANIMALS, "bead", "beat"]) == "; did you mean 'bead', 'bear' or 'beat'?"
    assert nearest("cta", ["cat", "dog"]) == "; did you mean 'cat'?"
    assert nearest("xylophone", ANIMALS) == ""
    assert nearest("flickr8k", ["a/flickr8k_grids", "b/coco"]) == "; did you mean 'a/flickr8k_grids'?"
    assert choices(ANIMALS, "zoo list") == " ('zoo list' lists all 7)"
    assert choices(ANIMALS[:3], "zoo list") == " (allowed: ant, bat, bear)"


@pytest.mark.medium
def test_messages_name_a_command_that_lists_the_rest(refused, invoke) -> None:
    words = ("train", "vse_infinity/folder_cpu", "data.source=x")
    shown = refused(*words, "training.batchsize=4")
    keys = yaml.safe_load(invoke("list", "recipes", "vse_infinity/folder_cpu").stdout)["training"]
    assert names(shown, "'batch_size'", "'chunk_size'", "'openvse list recipes NAME'", len(keys))
    every = [name for registry in registries() for name in registry.names()]
    assert names(refused("list", "parts", "gpoo"), "'gpo'", "'openvse list parts'", len(every))
    assert len(invoke("list", "parts").stdout.replace(", ", "\n").splitlines()) == len(every)
    listed = invoke("list", "parts", "gpo").stdout.splitlines()
    assert listed[0].startswith("aggregator gpo: ") and len(listed) == 1 + 7
    assert "  temperature: float, default 0.1" in listed
    assert "  projection: " in invoke("list", "parts", "resnet").stdout


@pytest.mark.medium
def test_every_part_can_be_shown(works) -> None:
    for name in sorted({name for registry in registries() for name in registry}):
        result = works("list", "parts", name)
        assert name in DATASETS or not any(f"  {key}: " in result.stdout for key in DECIDED)


COMPLETED = {
    ("train vse_infinity/fold", 2): ["vse_infinity/folder_cpu"],
    ("train vse_infinity/folder_cpu training.ba", 3): ["training.batch_size="],
    ("train vse_infinity/folder_cpu image.aggregator.per", 3): ["image.aggregator.per_dimension="],
    ("train vse_infinity/folder_cpu objective.ranking.criterion.m", 3): ["objective.ranking.criterion.margin="],
    ("train nothing/known trai", 3): [],
    ("list parts adp", 3): ["adpool"],
    ("list recipes vse_infinity/fold", 3): ["vse_infinity/folder_cpu"],
    ("data check flickr", 3): ["flickr30k", "flickr8k"],
    ("extract resn", 2): ["resnet"],
    ("extract transformers_", 2): ["transformers_text", "transformers_vision"],
}
COMPLETE = """
import json, sys
from typer.testing import CliRunner
from openvse.cli.app import app

found = []
for line, position in json.load(sys.stdin):
    asked = {"COMP_WORDS": f"openvse {line}", "COMP_CWORD": str(position), "_OPENVSE_COMPLETE": "complete_bash"}
    found.append(CliRunner().invoke(app, [], env=asked, prog_name="openvse").stdout.split())
print(json.dumps(found))
"""


@pytest.mark.medium
def test_bash_completes() -> None:
    """In a process of its own: the checks of types here would hide from Typer what a completion takes."""
    done = subprocess.run(
        [sys.executable, "-c", COMPLETE], input=json.dumps([*COMPLETED]), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert dict(zip(COMPLETED, json.loads(done.stdout), strict=True)) == COMPLETED


def test_commands_that_compute_take_the_same_options() -> None:
    commands = whole_program().commands  # type: ignore[attr-defined]
    taken = {
        name: {option for each in commands[name].params for option in each.opts}
        for name in ("train", "extract", "evaluate", "index", "search", "ask", "demo")
    }
    assert [name for name, options in taken.items() if "--device" not in options] == []
    assert [name for name, options in taken.items() if "--threads" not in options] == ["search"]
    assert all("--json" in taken[name] for name in ("evaluate", "index", "search", "ask"))
    assert "--json" in {option for each in commands["data"].commands["check"].params for option in each.opts}


@pytest.mark.medium
def test_a_device_of_the_command_line_is_that_of_the_recipe(trained, tmp_path, works) -> None:
    words = ("train", trained / "tiny.yaml", "training.device=auto", "training.phases.0.epochs=1")
    result = works(*words, "--device", "cpu", "--threads", 1, "--quiet", "--out", tmp_path / "run")
    assert "epoch" not in result.stderr.replace("epochs", "")
    written = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["training"]
    assert (written["device"], written["threads"]) == ("cpu", 1)


@pytest.mark.medium
def test_the_page_shows_the_document_as_it_is(trained, invoke) -> None:
    page = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
    shown = json.loads(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0])
    words = ("search", trained / "run" / "best", trained / "index", "red sky", "--json")
    printed = json.loads(invoke(*words).stdout)
    assert list(printed) == list(shown)
    assert (printed["schema"], printed["command"]) == (shown["schema"], shown["command"])
    row = next(line for line in page.splitlines() if line.startswith("| `search` |"))
    hit = printed["result"]["queries"][0]
    assert all(f"`{key}`" in row for key in (*printed["result"], *hit, *hit["hits"][0]))
