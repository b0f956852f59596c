"""A tiny question set with stored features, and a recipe that trains on it in a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openvse.features.extract import FeatureStoreWriter
from openvse.tasks.recipes import parse_recipe
from openvse_papers.vqa.recipe import VQARecipe

THINGS = ("dog", "cat", "cup", "ball")
COLOURS = ("red", "green", "blue", "white", "black")
FEATURE_DIM = 12


def write_tiny_questions(folder: Path, *, train: int = 16, validation: int = 6, test: int = 4) -> Path:
    """Write ``metadata.jsonl`` and a store ``features``: of each image, what colour two things in it have.

    A cell of a thing is the sum of a signature of the thing and one of its colour; two more cells are noise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    of_thing = dict(zip(THINGS, rng.normal(size=(len(THINGS), FEATURE_DIM)), strict=True))
    of_colour = dict(zip(COLOURS, rng.normal(size=(len(COLOURS), FEATURE_DIM)), strict=True))
    lines = []
    with FeatureStoreWriter(folder / "features", fingerprint="tiny", dim=FEATURE_DIM, dtype="float32") as writer:
        for number in range(train + validation + test):
            split = "train" if number < train else "validation" if number < train + validation else "test"
            name = f"{number:03d}.jpg"
            things, colours = rng.choice(THINGS, 2, replace=False), rng.choice(COLOURS, 2)
            for thing, colour in zip(things, colours, strict=True):
                asked = {"question": f"what colour is the {thing}", "answer": str(colour), "kind": "other"}
                lines.append(json.dumps({"file_name": name, **asked, "split": split}))
            cells = [of_thing[thing] + of_colour[c] for thing, c in zip(things, colours, strict=True)]
            cells += [0.1 * rng.normal(size=FEATURE_DIM) for _ in range(2)]
            writer.add(name, torch.tensor(np.array(cells), dtype=torch.float32))
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def answering_tree(folder: Path, **training: Any) -> dict[str, Any]:
    """Return score attention's shape at a width of 16; keyword arguments go into the recipe's training section."""
    return {
        "task": "vqa",
        "name": "tiny_questions",
        "embed_dim": 16,
        "image": {
            "encoder": {"name": "precomputed", "feature_dim": FEATURE_DIM}
            | {"projection": "linear", "augmentation": "none"},
            "aggregator": "tokens",
        },
        "text": {
            "encoder": {"name": "bigru", "word_dim": 8, "min_count": 1, "size_augmentation": "none"},
            "aggregator": "tokens",
        },
        "fusion": {"name": "score_attention", "num_heads": 2, "num_vectors": 2},
        "answers": {"min_count": 1},
        "data": {"source": f"question_folder:{folder}", "features": str(folder / "features")},
        "optimizer": {"name": "adam", "learning_rate": 5e-3, "weight_decay": 0.0},
        "training": {
            "batch_size": 8,
            "device": "cpu",
            "log_every": 1,
            "phases": [{"epochs": 1, "warmup_epochs": 1}, {"epochs": 2}],
            **training,
        },
    }


def question_only(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe without its images."""
    aggregator = {"name": "score_attention", "num_heads": 2}
    return {**tree, "image": None, "fusion": None, "text": {**tree["text"], "aggregator": aggregator}}


def answering_recipe(folder: Path, **training: Any) -> VQARecipe:
    """Return the tiny recipe."""
    return parse_recipe(answering_tree(folder, **training))
