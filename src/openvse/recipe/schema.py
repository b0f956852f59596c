"""What a recipe may say. Parts carry their own options, which their constructors check when they are built."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Strict(BaseModel):
    """A section of a recipe: unknown keys are refused, and nothing changes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Part(BaseModel):
    """A part by name; every other key is an argument of its constructor. ``gpo`` is short for ``{name: gpo}``."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return dict(self.model_extra or {})


class TowerSpec(Strict):
    """One side of the model."""

    encoder: Part
    aggregator: Part


class DataSpec(Strict):
    """Where the pairs come from.

    Attributes:
        source: a folder or file whose kind is detected, or ``NAME:ROOT`` (``flickr8k:/data/flickr8k``).
        features: a feature store to read instead of decoding pictures, or a folder of stores, of which the one that
            fits the encoder is taken; ``auto`` extracts into the run's folder.
        num_workers: processes that load batches ahead.
        random_views: training sees a random crop of each decoded image, mirrored half of the time, and other frames of
            a clip; false shows the same whole image in every epoch. Stored features have no views.
    """

    source: str = ""
    features: str | None = None
    num_workers: int = Field(default=0, ge=0)
    random_views: bool = True


class OptimizerSpec(Strict):
    """The optimiser.

    Attributes:
        name: adamw or adam.
        learning_rate: of everything that no multiplier names; a phase may set its own.
        weight_decay: decoupled for adamw.
        amsgrad: the AMSGrad variant.
        multipliers: parameter-name prefix to factor of the learning rate, the longest prefix wins.
    """

    name: Literal["adamw", "adam"] = "adamw"
    learning_rate: float = Field(default=5e-4, gt=0)
    weight_decay: float = Field(default=1e-4, ge=0)
    amsgrad: bool = False
    multipliers: dict[str, float] = Field(default_factory=dict)


class PhaseSpec(Strict):
    """Some epochs under the same conditions.

    Attributes:
        epochs: how many.
        learning_rate: replaces the optimiser's for these epochs.
        warmup_epochs: over this many epochs the learning rate climbs linearly from 0.
        frozen: parameter-name prefixes that do not train.
        objective: dotted overrides of the recipe's objective, for instance ``ranking.miner: all``.
    """

    epochs: int = Field(ge=1)
    learning_rate: float | None = Field(None, gt=0)
    warmup_epochs: float = Field(0.0, ge=0)
    frozen: tuple[str, ...] = ()
    objective: dict[str, Any] = Field(default_factory=dict)


class PlateauSpec(Strict):
    """Lowering the learning rate when validation no longer improves.

    Attributes:
        factor: of the learning rate, each time; it multiplies what the phases say, to the end of the run.
        patience: validations in a row without a new best after which it does.
        metric: of the validation; more must be better. Answering questions has ``accuracy`` alone.
    """

    factor: float = Field(0.5, gt=0, lt=1)
    patience: int = Field(ge=1)
    metric: Literal["rsum", "i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "accuracy"] = "rsum"


class TrainingSpec(Strict):
    """How to train.

    Attributes:
        batch_size: positive pairs, or questions, a batch, over all processes.
        phases: run in order.
        plateau: lowers the learning rate when validation stagnates; None leaves it to the phases.
        clip_norm: largest gradient norm; None does not clip.
        precision: of the towers; scores and loss are always computed in single precision.
        device: auto takes the fastest there is.
        threads: CPU threads; None leaves PyTorch's choice.
        checkpoint_every_s: seconds between checkpoints within an epoch; each epoch ends with one.
        log_every: steps between lines of metrics.jsonl.
        validation_images: validate on this many images of the split, evenly spread, with what belongs to them; None
            takes all. For models that compute each pair's score: a whole validation can take longer than an epoch.
    """

    batch_size: int = Field(128, ge=2)
    phases: tuple[PhaseSpec, ...] = Field(min_length=1)
    plateau: PlateauSpec | None = None
    clip_norm: float | None = Field(2.0, gt=0)
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    threads: int | None = Field(None, ge=1)
    checkpoint_every_s: float = Field(600.0, gt=0)
    log_every: int = Field(20, ge=1)
    validation_images: int | None = Field(None, ge=1)


class Published(Strict):
    """Figures of the paper that a recipe follows; evaluation shows them beside ours where the protocol is theirs.

    Attributes:
        source: paper, table, data set and protocol, in words.
        num_images: of the test set.
        folds: that the test set is cut into, whose figures are averaged.
        metrics: under the names that evaluation uses, in percent.
    """

    source: str
    num_images: int = Field(ge=1)
    folds: int = Field(1, ge=1)
    metrics: dict[str, float]


class RunRecipe(Strict):
    """What the recipes of all tasks say; ``embed_dim`` is D."""

    task: str
    name: str
    description: str = ""
    seed: int = Field(0, ge=0)
    embed_dim: int = Field(1024, ge=1)
    image: TowerSpec | None
    text: TowerSpec
    data: DataSpec = Field(default_factory=DataSpec)
    optimizer: OptimizerSpec = Field(default_factory=OptimizerSpec)
    training: TrainingSpec

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-like values."""
        return self.model_dump(mode="json")


class Recipe(RunRecipe):
    """Everything that decides a run of retrieval: model, objective, data, training, seed."""

    task: Literal["retrieval"] = "retrieval"
    image: TowerSpec
    similarity: Part = Part(name="set_max")
    objective: dict[str, Part] = Field(min_length=1)
    published: tuple[Published, ...] = ()

    @field_validator("objective")
    @classmethod
    def _reserved(cls, value: dict[str, Part]) -> dict[str, Part]:
        if "loss" in value:
            raise ValueError("a term may not be called 'loss': that is the name of their sum")
        return value

    @field_validator("published", mode="before")
    @classmethod
    def _nothing_published(cls, value: Any) -> Any:
        return () if value is None else value  # what the first models' folders say

    @field_validator("training")
    @classmethod
    def _own_metrics(cls, value: TrainingSpec) -> TrainingSpec:
        if value.plateau is not None and value.plateau.metric == "accuracy":
            raise ValueError(
                "plateau.metric is accuracy, which retrieval does not have: take rsum or a recall"
            )
        return value

    def published_for(self, num_images: int, folds: int) -> dict[str, dict[str, float]]:
        """Return the published figures, by source, of a test set of this size."""
        return {
            told.source: told.metrics
            for told in self.published
            if (told.num_images, told.folds) == (num_images, folds)
        }
