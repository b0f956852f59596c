"""What a training step starts on a GPU: operators by file, and the bytes sent to it, counted on a CPU.

python benchmarks/operators.py

It trains on the emulated device of ``tests/device``, with 16 dimensions and tiny data, and counts the second step. The
first one also makes the state of the optimiser, and each fifth one computes the loss at collapse. Views and
memory without values start nothing. An operator of the backward pass counts for the file of its forward pass.
Recurrences, for which a GPU has kernels of its own, and the text model of ``transformers`` are counted apart. No image
is twice in the batch. Otherwise the two directions of a loss are computed one after the other.
"""

from __future__ import annotations

import re
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from _measure import environment, table  # noqa: E402
from gpu import write_bert  # noqa: E402
from openvse.tasks.run import run_recipe  # noqa: E402
from openvse.training.trainer import Trainer  # noqa: E402
from tests.device import emulated_device as emulated  # noqa: E402
from tests.device.small_recipes import small  # noqa: E402
from tests.tiny import write_tiny_corpus  # noqa: E402

METHODS = ("vse_infinity/coco_regions_bigru", "pvse/coco_grids_bigru", "mv_vse/coco_regions_bigru")
METHODS += ("vse_2ad/coco_regions_bert",)
APART, OWN = "recurrences and text models", "training/trainer.py"
FREE = {
    *("_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "diagonal", "empty", "empty_like"),
    *("empty_strided", "expand", "is_pinned", "new_empty", "permute", "select", "slice", "split", "split_with_sizes"),
    *("squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze", "view"),
}


class Step:
    """The operators of one step by file, and the bytes that it sends to the device."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.sent = 0
        self.ahead: list[int] = []  # the bytes of each batch that is sent ahead
        self.counts = False

    @property
    def outside(self) -> int:
        """The number of operators outside recurrences and text models."""
        return self.files.total() - self.files[APART]

    def add(self, name: str, args: Any) -> None:
        """Count an operator."""
        files = [frame.filename for frame in traceback.extract_stack()]
        sent = 0 if name != "_to_copy" or isinstance(args[0], emulated.Emulated) else args[0].nbytes
        if sent and any(file.endswith("batches/pairs.py") for file in files):
            self.ahead.append(sent)
            return
        if not self.counts or name in FREE:
            return
        self.sent += sent
        node = torch._C._current_autograd_node()
        if node is not None:
            files = re.findall(r'File "([^"]+)"', "".join(node.metadata.get("traceback_", ())))
        ours = [file.partition("/src/openvse/")[2] for file in files if "/src/openvse/" in file]
        if any("/transformers/" in file or file.endswith("/modules/rnn.py") for file in files):
            self.files[APART] += 1
        elif node is None and "retrieval/training.py" not in ours:
            self.files[OWN] += 1
        else:
            self.files[ours[-1]] += 1


def count_step(name: str, corpus: Path, bert: str, folder: Path) -> Step:
    """Train by a recipe, and return what its second step starts."""
    counted, taken, compute, note = Step(), Counter[str](), emulated._compute, Trainer._note

    def watched(func: Any, args: Any, kwargs: Any) -> Any:
        counted.add(func._overloadpacket.__name__, args)
        return compute(func, args, kwargs)

    def take(trainer: Trainer, done: Any) -> None:
        note(trainer, done)
        taken["steps"] += 1
        counted.counts = taken["steps"] == 1
        torch.autograd.set_detect_anomaly(counted.counts, check_nan=False)

    with emulated.emulated_device(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulated, "_compute", watched)
        patch.setattr(Trainer, "_note", take)
        run_recipe(small(name, corpus, bert, "cuda"), folder)
    counted.files[OWN] += bool(counted.ahead)
    counted.sent += sum(counted.ahead[1:2])
    return counted


def main() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as made:
        corpus = write_tiny_corpus(Path(made) / "tiny", train=12, validation=4)
        bert = str(write_bert(Path(made) / "bert", ["a", "red", "dog"], small=True))
        steps = {name: count_step(name, corpus, bert, Path(made) / name) for name in METHODS}
    files = sorted({file for step in steps.values() for file in step.files} - {APART})
    rows = [[file, *(step.files[file] for step in steps.values())] for file in files]
    rows += [["all of these", *(step.outside for step in steps.values())]]
    rows += [[APART, *(step.files[APART] for step in steps.values())]]
    rows += [["bytes sent", *(step.sent for step in steps.values())]]
    print(environment())
    print(table(["operators of a step", *(name.partition("/")[0] for name in steps)], rows))


if __name__ == "__main__":
    main()
