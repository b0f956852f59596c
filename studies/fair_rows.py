"""A fair comparison: each method gets the same number of settings to choose from on validation, then further seeds.

python studies/fair_rows.py PLAN --out RUNS data.source=flickr8k:ROOT data.features=windows data.text_features=texts
python studies/fair_rows.py PLAN --out RUNS --keep runs.jsonl

PLAN is a file such as ``plans/crops_minilm.yaml``: what all runs share, and for each method its recipe, what differs
from it, and what to choose from. Every combination of the choices is trained with seed 0; the one with the best
validation score (RSUM, or the accuracy of answers) is trained with the other seeds, too. Nothing here reads the test
split: ``openvse compare`` does that once, afterwards, with the runs that ``--chosen`` lists.

The same command may run several times at once: each takes the next run that none of the others has. A run that was
stopped goes on. ``--keep`` writes what is needed to trace and repeat each run: its resolved recipe, its validation
scores by epoch, its commit and its machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from _commands import openvse, validations
from openvse.errors import OpenVSEError
from openvse.files import locked
from openvse.specs.load import merged
from openvse.tasks.runs import find_run
from openvse.training.records import METRICS, read_records

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
ENVIRONMENT = ("started", "commit", "torch", "python", "device")


@dataclass(frozen=True)
class Setting:
    """One way to train a method."""

    method: str
    number: int
    recipe: dict[str, Any]

    def run(self, out: Path, seed: int) -> Path:
        """The folder of the run with a seed."""
        return out / f"{self.method}-{self.number}-s{seed}"


def main(arguments: Sequence[str]) -> None:
    """Train what is missing of a plan; or list what was chosen; or keep the records of what is finished."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("plan", type=Path, help="YAML file of methods and their settings")
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE for every run, such as where the data is")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--methods", nargs="+", help="only these, in this order")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds of a chosen setting; 1 only chooses")
    parser.add_argument(
        "--chosen", action="store_true", help="print the runs of the chosen settings, and train nothing"
    )
    parser.add_argument("--keep", type=Path, help="write a line of JSON for each finished run, and train nothing")
    options = parser.parse_intermixed_args(arguments)
    plan = yaml.safe_load(options.plan.read_text())
    methods = options.methods or [*plan["methods"]]
    if unknown := {*methods} - {*plan["methods"]}:
        parser.error(
            f"{options.plan} has no {', '.join(sorted(unknown))}, but {', '.join(plan['methods'])}; --methods goes last"
        )
    settings = {name: [*settings_of(name, plan)] for name in methods}
    options.out.mkdir(parents=True, exist_ok=True)
    if options.keep is not None:
        keep(settings, options.out, options.keep)
        return
    if options.chosen:
        for name in methods:
            if (chosen := choose(settings[name], options.out)) is None:
                print(f"{name}: not all of its settings are trained", file=sys.stderr)
                continue
            print(f"{name}={','.join(str(chosen.run(options.out, seed)) for seed in range(options.seeds))}")
        return
    for name in methods:
        for setting in settings[name]:
            train(setting, 0, options)
    for name in methods:
        if (chosen := choose(settings[name], options.out)) is not None:
            for seed in range(1, options.seeds):
                train(chosen, seed, options)


def settings_of(name: str, plan: dict[str, Any]) -> Iterator[Setting]:
    """Yield every combination of what a method chooses from: one change of each list."""
    method = plan["methods"][name]
    for number, chosen in enumerate(itertools.product(*method.get("settings", ()))):
        changes = reduce(merged, [plan["shared"], method.get("changes", {}), *chosen])
        base = RECIPES / f"{method.get('base', plan.get('base'))}.yaml"
        yield Setting(name, number, {"base": str(base), "name": name, **changes})


class TakenError(OpenVSEError):
    """Another process trains the run."""


def train(setting: Setting, seed: int, options: argparse.Namespace) -> None:
    """Train a run, or go on with it, unless it is finished or another process has it."""
    run = setting.run(options.out, seed)
    turn = run.with_suffix(".turn")
    turn.mkdir(exist_ok=True)
    with suppress(TakenError), locked(turn, "the turn", TakenError):
        if best(run) is not None:
            return
        recipe = run.with_suffix(".yaml")
        recipe.write_text(yaml.safe_dump(setting.recipe))
        words = [str(recipe), *options.overrides, f"seed={seed}", "--out", str(run)]
        openvse("train", *words, *["--resume"] * (run / "last.pt").exists())
        (run / "last.pt").unlink(missing_ok=True)  # hundreds of megabytes that a finished run does not need
        print(run.name, *(best(run) or ()), flush=True)


def best(run: Path) -> tuple[float, int] | None:
    """The best validation score of a finished run and minus its epoch; None if it is not finished."""
    if not (run / "best" / "config.json").exists() or find_run(str(run)).unfinished():
        return None
    return max(((score, -epoch) for epoch, score in validations(run).items()), default=None)


def choose(settings: Sequence[Setting], out: Path) -> Setting | None:
    """The setting whose run with seed 0 is best on validation; None until all of them are trained."""
    reached = [best(setting.run(out, 0)) for setting in settings]
    known = [each for each in reached if each is not None]
    return settings[reached.index(max(known))] if len(known) == len(settings) else None


def keep(settings: Mapping[str, Sequence[Setting]], out: Path, target: Path) -> None:
    """Write a line for each finished run, without where its data was."""
    lines = []
    for setting in itertools.chain(*settings.values()):
        for run in sorted(out.glob(f"{setting.method}-{setting.number}-s*/")):
            if best(run) is None:
                continue
            records = read_records(run / METRICS)
            recipe = yaml.safe_load((run / "recipe.yaml").read_text())
            recipe["data"] = {key: value for key, value in recipe["data"].items() if not isinstance(value, str)}
            line = {
                "run": run.name,
                f"validation_{'accuracy' if recipe['task'] == 'vqa' else 'rsum'}": [
                    round(score, 2) for _, score in sorted(validations(run).items())
                ],
                "minutes": round((records.seconds() or 0) / 60, 1),
                "memory_mb": round((records.memory() or 0) / 1e6) or None,
                **{key: records.of("environment")[0][key] for key in ENVIRONMENT},
                "recipe": recipe,
            }
            lines.append(json.dumps(line))
    target.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main(sys.argv[1:])
