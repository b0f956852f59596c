"""A run that goes on with other data than before: what is told, and what begins anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from openvse.corpus import SplitData
from openvse.corpus.identity import digest_of
from openvse.errors import TrainingError
from openvse.training.task import AnyTask


def entries_of(model: Any) -> list[str]:
    """Return the words and answers that a model has a row for, in their order."""
    vocabulary = getattr(getattr(model, "text", None), "encoder", None)
    vocabulary, answers = getattr(vocabulary, "vocabulary", None), getattr(model, "answers", None)
    words = [] if vocabulary is None else [f"word {word!r}" for word in vocabulary.words]
    return words + ([] if answers is None else [f"answer {answer!r}" for answer in answers.answers])


def data_state(task: AnyTask) -> dict[str, Any]:
    """Return what a checkpoint keeps of the data of a run, as plain values."""
    return {
        "splits": {name: asdict(split) for name, split in task.splits.items()},
        "entries": digest_of(entries_of(task.model)),
        "trained_on": task.model.provenance.get("data", task.data).get("trained_on"),
    }


@dataclass(frozen=True)
class OtherData:
    """How the data of a run differ from those that it was trained on before.

    Attributes:
        changes: what has changed in each split, in words; splits that are the same are not in it.
        moved: whether the training split has another size, so that positions in an epoch mean other examples.
        leakage: a line about images of the validation split that the run was trained on before, or "".
    """

    changes: Mapping[str, str]
    moved: bool
    leakage: str

    @property
    def validation(self) -> bool:
        """Whether the validation split has changed, so that earlier validations cannot be compared with later ones."""
        return "validation" in self.changes

    def describe(self) -> str:
        """Return a line that says what has changed."""
        listed = "; ".join(f"{split}: {change}" for split, change in self.changes.items())
        return f"the data are not those with which the run was trained so far: {listed}"


def find_other_data(
    saved: Mapping[str, Any], task: AnyTask, where: Path, *, same_data: bool
) -> OtherData | None:
    """Return how the data of a task differ from those of a checkpoint (``data_state``); None if they are the same.

    Raise TrainingError if they differ and ``same_data`` is asked for, or if the words or answers of the model, which
    come from the training data, would be others.
    """
    before = {name: SplitData(**values) for name, values in saved["splits"].items()}
    changes = {name: change for name, then in before.items() if (change := then.change(task.splits[name]))}
    sizes = [
        (each["train"].images, each["train"].examples) if "train" in each else None
        for each in (before, task.splits)
    ]
    seen = task.seen_by({"data": saved}).describe("the run") if "validation" in changes else ""
    other = OtherData(changes, sizes[0] != sizes[1], seen)
    if changes and same_data:
        raise TrainingError(f"{other.describe()}: give them again, or choose another --out")
    if saved["entries"] != digest_of(entries_of(task.model)):
        raise TrainingError(
            f"{other.describe()}; the words or answers of the model come from the training data and would be others: "
            f"give {where} its own data again, or begin a new run from it (--start {where} --out ANOTHER)"
        )
    return other if changes else None
