"""Runs side by side that were not trained or validated on the same data are told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from openvse.model.folder import CONFIG, FORMAT_VERSION, WEIGHTS
from openvse.tasks.runs import NamedRun, differing_data, differing_keys


def run_of(folder: Path, train: str | None, validation: str | None) -> NamedRun:
    """Write the config of a model that names the hashes of its data."""
    named = {"train": train, "validation": validation}
    digests = {split: digest for split, digest in named.items() if digest is not None}
    provenance: dict[str, Any] = {"data": {"name": "some", **({"digests": digests} if digests else {})}}
    config = {"format_version": FORMAT_VERSION, "task": "retrieval", "model": {}, "provenance": provenance}
    folder.mkdir()
    (folder / WEIGHTS).touch()
    (folder / CONFIG).write_text(json.dumps({"library_name": "openvse", **config}))
    return NamedRun(str(folder), str(folder))


def test_runs_on_different_data_are_told(tmp_path: Path) -> None:
    one, same, other, old = (
        run_of(tmp_path / name, *digests)
        for name, digests in {
            "one": ("a", "v"),
            "same": ("a", "v"),
            "other": ("b", "w"),
            "old": (None, None),
        }.items()
    )
    assert differing_data({"one": [one], "same": [same], "old": [old]}) == []
    trained, validated = differing_data({"one": [one, same], "other": [other], "old": [old]})
    assert "trained" in trained and "(one; other)" in trained
    assert "validation" in validated
    base = {"image": {"aggregator": {"name": "gpo", "k": 5}}, "training": {"phases": [{"epochs": 9}]}}
    pooled = base | {"image": {"aggregator": {"name": "mean", "k": 1}}}
    longer = pooled | {"training": {"phases": [{"epochs": 3}]}}
    made = [replace(one, recipe=json.dumps(tree)) for tree in (base, pooled, longer)]
    lines = differing_keys(dict(zip("ABC", ([each] for each in made), strict=True)))
    assert [line.startswith(f"{name} differs from A in ") for name, line in zip("BC", lines, strict=True)]
    assert [line.count("image.aggregator.") for line in lines] == [2, 2]
    assert ["any of" in line for line in lines] == [False, True]  # a part with its options is one difference

    mixed = differing_data({"both": [one, other], "same": [same]})
    assert [line.startswith("both: its runs were ") for line in mixed] == [True, False, True, False]
