"""A tiny data set with stored features, and a recipe that trains on it in a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openvse.features.extract import FeatureStoreWriter
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.tasks.recipes import parse_recipe
from openvse.training.records import EpochReport, Silent, StepReport

WORDS = ("red", "green", "blue", "dog", "cat", "bird", "runs", "sits", "sleeps", "jumps", "water", "grass")
FEATURE_DIM = 12


class Stop(Exception):
    """Stands for a kill between two steps."""


class Recorder(Silent):
    """A watcher that remembers what it is told, and stops a run abruptly after some steps."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop = stop
        self.steps: list[StepReport] = []
        self.epochs: list[EpochReport] = []
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def step(self, report: StepReport) -> None:
        self.steps.append(report)
        if report.global_step == self.stop:
            raise Stop

    def epoch(self, report: EpochReport) -> None:
        self.epochs.append(report)

    def note(self, message: str) -> None:
        self.notes.append(message)

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def write_tiny_corpus(folder: Path, *, train: int = 32, validation: int = 8) -> Path:
    """Write ``tiny.csv`` and a store ``features``: each image's features encode the words of its two captions."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    lines = ["file_name,caption,split"]
    signature = rng.normal(size=(len(WORDS), FEATURE_DIM))
    with FeatureStoreWriter(folder / "features", fingerprint="tiny", dim=FEATURE_DIM, dtype="float32") as writer:
        for number in range(train + validation):
            chosen = rng.choice(len(WORDS), size=4, replace=False)
            name = f"{number:03d}.jpg"
            split = "train" if number < train else "validation"
            lines += [f"{name},{' '.join(WORDS[w] for w in order)},{split}" for order in (chosen, chosen[::-1])]
            local = signature[chosen] + 0.05 * rng.normal(size=(4, FEATURE_DIM))
            writer.add(name, torch.tensor(local, dtype=torch.float32))
    (folder / "tiny.csv").write_text("\n".join(lines) + "\n")
    return folder


def tiny_recipe(folder: Path, **training: Any) -> RetrievalRecipe:
    """Return VSE-infinity's shape at a width of 16; keyword arguments go into the recipe's training section."""
    return parse_recipe(tiny_tree(folder, **training))


def tiny_tree(folder: Path, **training: Any) -> dict[str, Any]:
    """Return the tiny recipe as nested mappings."""
    return {
        "name": "tiny",
        "embed_dim": 16,
        "image": {
            "encoder": {"name": "precomputed", "feature_dim": FEATURE_DIM, "projection": "linear"},
            "aggregator": "gpo",
        },
        "text": {"encoder": {"name": "bigru", "word_dim": 8, "min_count": 1}, "aggregator": "gpo"},
        "objective": {"ranking": {"name": "contrast", "miner": "hardest", "criterion": {"name": "hinge"}}},
        "data": {"source": str(folder / "tiny.csv"), "features": str(folder / "features")},
        "optimizer": {"learning_rate": 5e-3},
        "training": {
            "batch_size": 16,
            "device": "cpu",
            "log_every": 1,
            "phases": [{"epochs": 1, "objective": {"ranking.miner": "all"}}, {"epochs": 2, "warmup_epochs": 1}],
            **training,
        },
    }


def are_same(one: Path, other: Path) -> bool:
    """Return whether two runs have the same records and ended at the same bits."""
    best = [(run / "best" / "model.safetensors").read_bytes() for run in (one, other)]
    return read_metrics(one) == read_metrics(other) and best[0] == best[1]


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the records of a run without what differs by machine and moment: environment, time and speed."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in record.items() if key != "images_per_s"}
        for record in records
        if record["kind"] not in ("environment", "time")
    ]
