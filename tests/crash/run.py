"""Stops every command that writes at every change of the disk: ``make crash``.

    python -m tests.crash.run [CASE[:FAULT,FAULT] ...] [--most 40] [--seed 0] [--jobs 2]

The faults are end, torn, full, broken and power; a case that names none has all of them.
A line of JSON for each try goes to build/crash/results.jsonl; the table and all failures are printed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.crash import power
from tests.crash.cases import BASE, CASES, CLIP, MODEL, QUESTIONS, make_clip, make_materials, make_questions
from tests.crash.tries import FAULTS, Case, NoCompilerError, Trial, built, forked

SHARES = {"end": 1.0, "torn": 0.5, "full": 0.5, "broken": 0.5, "power": 0.5}
"""How many of the tries of a case go to each fault."""

ALL = ",".join(SHARES)


def make_what_lacks(cases: Sequence[Case]) -> None:
    """Make the materials that these cases need, once."""
    needed = [(MODEL.parent.parent, make_materials)]
    needed += [(CLIP, make_clip)] if any(case.name == "convert" for case in cases) else []
    needed += [(QUESTIONS, make_questions)] if any(case.command.startswith("ask") for case in cases) else []
    BASE.mkdir(parents=True, exist_ok=True)
    for name in ("openvse.tasks.run", "openvse.retrieval.kind", "openvse.search.updating", "openvse.encoding"):
        importlib.import_module(name)  # once for all children
    for place, make in needed:
        if not place.exists():
            done = forked(make, BASE / "materials_log")
            if done.code:
                raise RuntimeError(f"{make.__name__}: {done}")


def try_case(case: Case, faults: Sequence[str], most: int, seed: int, out: IO[str]) -> list[dict[str, Any]]:
    """Try the faults of a case, and return and write what was found."""
    trial, rows = Trial(case, BASE / "states" / case.name.replace(" ", "-")), []
    for fault in faults:
        limit = max(1, round(most * SHARES[fault]))
        found = power_cuts(trial, limit, seed) if fault == "power" else None
        if found is None:
            found = [trial.attempt(fault, number) for number in trial.chosen(fault, limit, seed)]
        for row in found:
            out.write(json.dumps(row) + "\n")
        out.flush()
        rows += found
    return rows


def power_cuts(trial: Trial, most: int, seed: int) -> list[dict[str, Any]]:
    """Play what power cuts can leave, and return what was found."""
    ways = [(cut, name, calls) for cut in power.cuts(trial.calls) for name, calls in power.states(trial.calls, cut)]
    drawn = random.Random(f"{seed} {trial.case.name} power").sample(ways, min(most, trial.case.most, len(ways)))
    rows = []
    for cut, name, calls in sorted(drawn, key=lambda way: way[0]):
        power.play(trial.home / "before", calls, trial.state)
        call = trial.calls[cut]
        row = {"case": trial.case.name, "command": trial.case.command, "fault": "power", "call": cut}
        row |= {"of": len(ways), "what": f"{name} before {call.name} {call.path}", "line": "", "code": 0}
        rows.append(row | trial.judged([]))
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the number of tries of each case and fault, and of those that failed."""
    columns = (*FAULTS, "power")
    lines = [f"{'case':28} {'calls':>6} " + " ".join(f"{name:>7}" for name in columns) + "   failed"]
    for name in dict.fromkeys(row["case"] for row in rows):
        some = [row for row in rows if row["case"] == name]
        counts = Counter(row["fault"] for row in some)
        calls = max(row["of"] for row in some if row["fault"] != "power" or len(counts) == 1)
        failed = sum(bool(row["wrong"]) for row in some)
        lines.append(f"{name:28} {calls:6} " + " ".join(f"{counts[each]:7}" for each in columns) + f"   {failed:6}")
    lines.append(f"{len(rows)} tries, {sum(bool(row['wrong']) for row in rows)} failed")
    return "\n".join(lines)


def main() -> int:
    """Try what the command line names, in several processes."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.run")
    parser.add_argument("cases", nargs="*", default=[case.name for case in CASES])
    parser.add_argument(
        "--most", type=int, default=40, help="tries of a case that end the process; other faults get half"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=BASE / "results.jsonl")
    given = parser.parse_args()
    named = {case.name: case for case in CASES}
    faults = {name: some or ALL for name, _, some in (each.partition(":") for each in given.cases)}
    if unknown := faults.keys() - named.keys():
        parser.error(f"no case is named {', '.join(sorted(unknown))}: take {', '.join(named)}")
    cases = {named[name]: some.split(",") for name, some in faults.items()}
    if "stops.so" in os.environ.get("LD_PRELOAD", ""):
        return _try_all(cases, given)
    try:
        library = built(BASE)
    except NoCompilerError as error:
        print(error, file=sys.stderr)
        return 2
    return _share(cases, given, library)


def _share(cases: Mapping[Case, Sequence[str]], given: argparse.Namespace, library: Path) -> int:
    """Run parts of the cases in processes of their own, in which the library is loaded, and print the table."""
    environment = os.environ | {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-m", "tests.crash.run"]
    options = ["--most", str(given.most), "--seed", str(given.seed)]

    def begin(some: Sequence[str], out: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*program, *some, *options, "--out", str(out)], env=environment)

    if given.jobs > 1:  # they share the materials
        make = "from tests.crash import run; run.make_what_lacks(run.CASES)"
        subprocess.run([sys.executable, "-c", make], env=environment, check=True)
    names = [f"{case.name}:{','.join(faults)}" for case, faults in cases.items()]
    parts = [names[number :: given.jobs] for number in range(given.jobs)]
    outs = [given.out.with_suffix(f".{number}.jsonl") for number in range(given.jobs)]
    begun = [begin(part, out) for part, out in zip(parts, outs, strict=True) if part]
    codes = [each.wait() for each in begun]
    rows = [json.loads(line) for out in outs if out.exists() for line in out.read_text().splitlines()]
    given.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for row in rows:
        if row["wrong"]:
            print(f"{row['case']}, {row['fault']} at {row['call']} ({row['what']}): {'; '.join(row['wrong'])}")
    print(table(rows))
    return int(any(codes) or any(row["wrong"] for row in rows))


def _try_all(cases: Mapping[Case, Sequence[str]], given: argparse.Namespace) -> int:
    failed = 0
    make_what_lacks([*cases])
    with given.out.open("w") as out:
        for case, faults in cases.items():
            began = time.monotonic()
            try:
                rows = try_case(case, faults, given.most, given.seed, out)
                wrong = sum(bool(row["wrong"]) for row in rows)
                print(f"{case.name}: {len(rows)} tries, {wrong} failed, {time.monotonic() - began:.0f} s", flush=True)
            except RuntimeError as error:
                print(f"{error}", flush=True)
                failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
