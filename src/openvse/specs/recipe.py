"""What a recipe may say about a run. Parts carry their own options, which their constructors check."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from openvse.specs.model import ModelSpec, Strict


class DataSpec(Strict):
    """Where the pairs come from.

    Attributes:
        source: a folder or file whose kind is detected, or ``NAME:ROOT`` (``flickr8k:/data/flickr8k``).
        features: a feature store to read instead of decoding images, or a folder of stores, of which the one that
            fits the encoder is taken; ``auto`` extracts into the run's folder.
        text_features: a feature store of token states to read instead of running the text model, or a folder of stores;
            ``auto`` extracts into the run's folder where the text model is frozen and the augmentation of tokens can do
            with its states, and runs it anew for each batch elsewhere; None always does that.
        num_workers: processes that load batches ahead.
        random_views: training sees a random crop of each decoded image, mirrored half of the time, and other frames of
            a clip; false shows the same whole image in every epoch. Stored features have no views.
        allow_outside: take images that lie outside of the folder of one's own data: ``../``, absolute paths, links.
        merge_captions: in data of one's own, captions of different images that are equal but for case are one text,
            relevant to all of these images; false makes them wrong for each other.
        captions_per_image: for retrieval. None draws pairs at random. Otherwise each image comes once an epoch with
            this many of its captions, which are drawn anew, or with ``all`` of them; ``training.batch_size`` then
            counts images.
    """

    source: str = ""
    features: str | None = None
    text_features: str | None = "auto"
    num_workers: int = Field(default=0, ge=0)
    random_views: bool = True
    allow_outside: bool = False
    merge_captions: bool = True
    captions_per_image: Annotated[int, Field(ge=1)] | Literal["all"] | None = None


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
        patience: validations in a row without a new best after which it does: one more than the ``patience`` of
            ``torch.optim.lr_scheduler.ReduceLROnPlateau``, which lowers the rate at the validation after those.
        metric: of the validation. Answering questions has ``accuracy`` alone.
        mode: max takes a larger value for a better one. min takes a smaller one, as PVSE's released code does with
            RSUM: the rate is then lowered every ``patience`` validations while RSUM stays above its first value.
        threshold: share of the best by which a value must be better to be a new best (1e-4 in PyTorch).
    """

    factor: float = Field(0.5, gt=0, lt=1)
    patience: int = Field(ge=1)
    metric: Literal["rsum", "i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "accuracy"] = "rsum"
    mode: Literal["max", "min"] = "max"
    threshold: float = Field(0.0, ge=0, lt=1)


class AverageSpec(Strict):
    """Validating and keeping a mean of the weights over the last steps in place of the weights.

    Attributes:
        decay: share of the mean so far that stays after a step: 0.999 looks back over about 1,000 steps.
    """

    decay: float = Field(0.999, gt=0, lt=1)


class TrainingSpec(Strict):
    """How to train.

    Attributes:
        batch_size: positive pairs, or questions, a batch, over all processes; images where
            ``data.captions_per_image`` is set.
        phases: run in order.
        plateau: lowers the learning rate when validation stagnates; None leaves it to the phases.
        average: validates and keeps an exponential moving mean of the weights; None the weights themselves.
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
    average: AverageSpec | None = None
    clip_norm: float | None = Field(2.0, gt=0)
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    threads: int | None = Field(None, ge=1)
    checkpoint_every_s: float = Field(600.0, gt=0)
    log_every: int = Field(20, ge=1)
    validation_images: int | None = Field(None, ge=1)


class RunRecipe(ModelSpec):
    """What the recipes of all tasks say: a model's spec, and how it is trained.

    Attributes:
        task: a name of the registry of tasks.
        name: of the recipe.
        description: in words.
        start: a model to begin from: a run's folder or its best/, any model folder, or a hub id. What the recipe does
            not say of the model is then the start's, and parts that agree take its weights; see ``docs/start.md``.
        seed: decides the first weights, the order of the data and everything else that is random.
        data: where the pairs or questions come from.
        optimizer: the optimiser.
        training: batches, phases, precision.
    """

    task: str
    name: str
    description: str = ""
    start: str | None = Field(None, min_length=1)
    seed: int = Field(0, ge=0)
    data: DataSpec = Field(default_factory=DataSpec)
    optimizer: OptimizerSpec = Field(default_factory=OptimizerSpec)
    training: TrainingSpec

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-like values."""
        return self.model_dump(mode="json")
