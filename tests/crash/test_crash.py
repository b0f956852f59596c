"""Every command that writes is stopped at changes of the disk; here a sample of what ``make crash`` tries."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash import power
from tests.crash.cases import CASES, MADE_OF_OTHERS, READS_ONLY, nothing_yet
from tests.crash.tries import Call, NoCompilerError, built
from tests.leaf_commands import leaf_commands

ROOT = Path(__file__).parents[2]
SAMPLE = ("encode npy replaced", "index exact to int8:end,broken", "index int8 update:torn,full")
"""Cases of the faults that were found once."""


def test_every_command_that_writes_has_a_case() -> None:
    """A new one brings its case, or says of which others it is made, or that it writes nothing."""
    tried = {re.sub(r" --.*", "", case.command) for case in CASES}
    known = {
        name.removesuffix(f" {kind}") if (kind := name.split()[-1]) and name.startswith("analyze ") else name
        for name, _ in leaf_commands()
    }
    assert known == tried | READS_ONLY | {*MADE_OF_OTHERS}
    assert all({*parts} <= tried for parts in MADE_OF_OTHERS.values())


def test_the_table_of_promises_is_that_of_the_cases() -> None:
    text = (ROOT / "docs" / "recovery.md").read_text()
    rows = {
        name: found
        for names, found in re.findall(r"^\| (`.*?) \| (.*?) \|", text, re.M)
        for name in re.findall(r"`(.*?)`", names)
    }
    promised = {case.command for case in CASES}
    assert promised <= rows.keys()
    for case in CASES:
        whole = case.between in (None, nothing_yet)
        assert (" or " in rows[case.command]) >= whole, case.name


@pytest.mark.slow
def test_a_sample_of_stops(tmp_path: Path) -> None:
    """Without a compiler the calls of ``openvse.files`` are stopped alone, in ``tests/test_files.py``."""
    try:
        library = built(tmp_path)
    except NoCompilerError:
        return
    environment = os.environ | {
        "OPENVSE_CRASH": str(tmp_path),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        "LD_PRELOAD": str(library),  # in the first process already
        "OMP_NUM_THREADS": "1",
    }
    words = [sys.executable, "-m", "tests.crash.run", *SAMPLE, "--most", "1", "--seed", "3"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [row for row in rows if row["wrong"]] == []
    assert {row["case"] for row in rows} == {each.partition(":")[0] for each in SAMPLE}
    assert {row["fault"] for row in rows} == {"end", "torn", "full", "broken", "power"}


def test_a_power_cut_loses_what_was_not_synced(tmp_path: Path) -> None:
    calls = [
        Call(1, "create", "new"),
        Call(2, "write", "new", content=b"one"),
        Call(3, "rename", "file", "new"),
        Call(4, "sync", "file"),
        Call(5, "write", "file", offset=3, content=b" two"),
    ]
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "file").write_bytes(b"old")
    found = {}
    for cut in range(len(calls) + 1):
        for name, kept in power.states(calls, cut):
            power.play(tmp_path / "before", kept, tmp_path / "after")
            found[cut, name] = {path.name: path.read_bytes() for path in (tmp_path / "after").iterdir()}
    assert found[3, "no content"] == {"file": b""}
    assert found[3, "no names"] == {"file": b"old"}
    assert (4, "no content") not in found
    assert found[5, "no content"] == {"file": b"one"}
