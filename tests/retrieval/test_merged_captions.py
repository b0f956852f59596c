"""Whether identical captions of own data are one text in training is an option of the recipe."""

from pathlib import Path

import numpy as np
import pytest
from accelerate import Accelerator

from openvse.batches.pairs import BatchKey
from openvse.retrieval.training import RetrievalTask, open_retrieval
from openvse.tasks.recipes import parse_recipe
from openvse.training.inputs import RunInputs
from tests.tiny import Recorder, tiny_tree, write_tiny_corpus


@pytest.mark.parametrize("merged", [True, False])
def test_merge_captions(merged: bool, tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus")
    lines = (corpus / "tiny.csv").read_text().splitlines()
    lines[1], lines[3] = "000.jpg,A red dog,train", "001.jpg,a red dog,train"
    (corpus / "tiny.csv").write_text("\n".join(lines) + "\n")
    tree, watcher = tiny_tree(corpus), Recorder()
    tree["data"]["merge_captions"] = merged
    task = open_retrieval(parse_recipe(tree), RunInputs(tmp_path, Accelerator(cpu=True), watcher))
    assert isinstance(task, RetrievalTask)
    said = ["identical captions: 1, of 2 images. Each counts as relevant to all images that have it"]
    assert [note for note in watcher.notes if "caption" in note and "vocabulary" not in note] == said * merged
    batch = task.training[BatchKey(np.arange(64))]
    assert int(batch.positives[0].sum() + batch.positives[1].sum()) == 4
    assert bool(batch.positives[1, 0]) is merged
    assert task.validate().keys() >= {"rsum"}
