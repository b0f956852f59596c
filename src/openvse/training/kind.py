"""The interface of a task to the rest of openvse: how its models are built, trained and evaluated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

from openvse.errors import DataError, ModelError, OpenVSEError
from openvse.evaluation.ranking import ALONE, Processes
from openvse.specs import RunRecipe
from openvse.specs.model import ModelSpec
from openvse.types import OnProgress

if TYPE_CHECKING:
    from openvse.evaluation.comparison import Comparison, MeasuredRun, Row
    from openvse.evaluation.report import AnsweredQueries, Findings, TestProtocol
    from openvse.model.base import Model
    from openvse.output.documents import Document
    from openvse.scoring.calibration import Calibration
    from openvse.training.inputs import RunInputs
    from openvse.training.task import AnyTask


SplitT = TypeVar("SplitT", bound="HasSplits")


@runtime_checkable
class HasSplits(Protocol):
    """Data with splits, such as a ``Corpus``."""

    def split(self: SplitT, name: str, /) -> SplitT:
        """Return one split."""


Data = TypeVar("Data", bound=HasSplits)
ItemsT = TypeVar("ItemsT", bound=Sized)


@dataclass(frozen=True)
class Request:
    """A request for an evaluation.

    Attributes:
        features: none, one for all models, or one for each model.
        folds: the number of equal parts that are evaluated separately and averaged.
        text_features: a store of token states, or a folder of stores, for the models whose text model is frozen. The
            other models read the texts.
        rerank_weight: w, the weight of the re-ranking score. The score of the other models has the weight 1 - w.
        exchanged: whether each question is also answered about another image.
        every: whether all relevant items are placed, and not only the best: mAP@R and the like.
        keep: the number of first results of each query to keep, for a report that shows them.
        query_bank: the split whose images and captions are a query bank. "" for the bank that the model keeps.
        places: the folders of the models. The store of a model's run replaces unchanged images, if it holds all.
    """

    data: str
    split: str = "test"
    features: Sequence[Path] = ()
    folds: int = 1
    text_features: Path | None = None
    rerank: bool = False
    rerank_top: int = 20
    rerank_weight: float = 1.0
    allow_outside: bool = False
    batch_size: int = 128
    progress: OnProgress | None = None
    exchanged: bool = False
    every: bool = False
    protocol: str = ""
    annotations: Path | None = None
    resamples: int = 1000
    seed: int = 0
    keep: int = 0
    processes: Processes = ALONE
    query_bank: str = ""
    calibrate: bool = False
    places: Sequence[str | Path] = ()

    def part(self, data: Data) -> Data:
        """Return the split of a corpus or of questions, or all of it for the split "all"."""
        return data if self.split == "all" else data.split(self.split)

    def store(self, number: int) -> Path | None:
        """Return the feature store of the model with this number, counted from 0. None reads the images."""
        if len(self.features) == 1:
            return self.features[0]
        return self.features[number] if self.features else None

    def check_stores(self, num_models: int) -> None:
        """Raise OpenVSEError if the feature stores are neither one for all models nor one for each."""
        if len(self.features) not in (0, 1, num_models):
            raise OpenVSEError(
                f"--features is given {len(self.features)} times for {num_models} model(s): give it once for all of "
                f"them, or once per model, in their order"
            )


@dataclass(frozen=True)
class LoadedRun:
    """A run of a comparison, with its models in memory. If ``rerank``, the last model re-ranks for the others."""

    source: str
    models: tuple[Model, ...]
    rerank: bool = False
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation: its figures, if anything could be measured, and warnings to read before them."""

    report: Document | None
    warnings: tuple[str, ...]
    calibration: Calibration | None = field(default=None, kw_only=True)

    def score(self) -> tuple[str, float]:
        """Return name and value of the metric that chooses models (larger is better). Raise ModelError without one."""
        raise ModelError("models of this task have no metric to choose one by: evaluate them instead")

    def findings(self, count: int) -> Findings:
        """Return the figures of one model, and its ``count`` best and worst queries of each kind."""
        raise ModelError("models of this task have no report: evaluate them instead")

    def to_markdown(self) -> str:
        """Return the figures as a table, empty if there are none."""
        return "" if self.report is None else self.report.to_markdown()

    def to_json(self) -> str:
        """Return the figures as JSON, null if there are none."""
        return "null" if self.report is None else self.report.to_json()

    def write(self, folder: Path) -> list[Path]:
        """Write the figures as Markdown and JSON, and return the paths of the files."""
        if self.report is None:
            return []
        self.report.save(folder)
        return [folder / "report.json", folder / "report.md"]


@dataclass(frozen=True)
class Compared:
    """The measurements of a comparison: each run on the same test set.

    Attributes:
        frame: the comparison without its rows.
        examples: a function that returns the queries on which two rows differ most, at most so many gains and losses of
            each kind, with the results of the first run of each row.
    """

    runs: tuple[MeasuredRun, ...]
    frame: Comparison
    examples: Callable[[Row, Row, int], Sequence[AnsweredQueries]]


class TaskKind(ABC):
    """A kind of task, which recipes and model folders name. It imports heavy modules only when it is used."""

    recipe: ClassVar[type[RunRecipe]]
    spec: ClassVar[type[ModelSpec]]

    @abstractmethod
    def build(self, tree: Mapping[str, Any], folder: Path) -> Model:
        """Build a saved model without its weights, from its spec among other keys, and the files of its folder."""

    @abstractmethod
    def open(self, recipe: RunRecipe, inputs: RunInputs) -> AnyTask | Model:
        """Open the data and features, and build the model and objectives that are trained.

        A model alone is finished: the data do not allow training.
        """

    @abstractmethod
    def evaluate(self, models: Sequence[Model], request: Request) -> Evaluation:
        """Measure models of this task."""

    def compare(self, runs: Iterable[LoadedRun], request: Request) -> Compared:
        """Measure each run on the same test set, one in memory at a time. All are checked before the first one."""
        raise ModelError("models of this task cannot be compared: evaluate each of them")


def under_protocol(request: Request, task: str) -> tuple[Request, TestProtocol | None]:
    """Return a request with the split, folds and metrics of its protocol, and the protocol if there is one."""
    from openvse.evaluation.report import protocol_named

    if not request.protocol:
        if request.annotations is not None:
            raise OpenVSEError("--annotations is for a --protocol that reads them, such as cxc or eccv_caption")
        return request, None
    protocol = protocol_named(request.protocol)
    if protocol.task != task:
        raise OpenVSEError(f"protocol {protocol.name} is for {protocol.task}, but the model is for {task}")
    if request.folds not in (1, protocol.folds):
        raise OpenVSEError(f"protocol {protocol.name} has {protocol.folds} fold(s): leave out --folds")
    split = protocol.split if request.split == "test" else request.split
    every = request.every or protocol.every
    return replace(request, split=split, folds=protocol.folds, every=every), protocol


def expect_data(protocol: TestProtocol | None, name: str) -> None:
    """Raise OpenVSEError if a data set is not the one of a protocol."""
    if protocol is not None and name != protocol.data:
        raise OpenVSEError(
            f"protocol {protocol.name} is on {protocol.data}, but the data set is {name}: give {protocol.data}:ROOT"
            f"{f', or --folds {protocol.folds} and no --protocol' if protocol.folds > 1 else ''}"
        )


def same_items(runs: Sized, source: str, verb: str, items: str, before: ItemsT, now: ItemsT) -> ItemsT:
    """Return the items that a run can use. Raise DataError where the ``runs`` before it used more."""
    if runs and len(now) < len(before):
        raise DataError(
            f"{source} can {verb} {len(now)} of the {len(before)} {items} that the earlier runs {verb}: name it "
            f"first, or extract its features from the same images"
        )
    return now


def published_for(
    provenance: Mapping[str, Any], size: Mapping[str, int], protocols: Collection[str] = ()
) -> dict[str, dict[str, float]]:
    """Return the published figures of a model's recipe that are comparable with an evaluation, by their source.

    An entry must have the values of ``size``, such as ``{"num_images": 1000, "folds": 1}`` (a missing one counts as 1),
    and name no other protocol. Provenance is not validated, so entries of another form are left out.
    """
    entries = provenance.get("published")
    return {
        str(entry["source"]): dict(entry["metrics"])
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict)
        and {"source", "metrics"} <= entry.keys()
        and entry.get("protocol") in (None, *protocols)
        and all(entry.get(key, 1) == value for key, value in size.items())
    }
