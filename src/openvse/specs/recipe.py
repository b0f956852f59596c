"""The schema of a run in a recipe. Parts have their own options, which their constructors check."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from openvse.specs.model import ModelSpec, Part, Strict


class DataSpec(Strict):
    """The data of a run.

    Attributes:
        source: a folder or file whose kind is detected, or ``NAME:ROOT`` (``flickr8k:/data/flickr8k``).
        features: a feature store to read instead of decoding images, or a folder of stores, of which the one that fits
            the encoder is used. ``auto`` extracts into the run's folder.
        text_features: a feature store of token states to read instead of running the text model, or a folder of stores.
            ``auto`` extracts into the run's folder if the text model is frozen and the augmentation of tokens works on
            states, and otherwise runs the text model for each batch. None always runs it.
        num_workers: the number of processes that load batches ahead.
        random_views: whether training sees a random crop of each decoded image, mirrored half of the time, and other
            frames of a clip. False shows the same whole image in every epoch. Stored features have no views.
        allow_outside: whether images may be outside the folder of your own data: ``../``, absolute paths, links.
        merge_captions: whether, in your own data, captions of different images that are equal except for case are one
            text, relevant to all of these images. False makes them wrong for each other.
        limit: the number of training images, drawn with the seed, with all their captions or questions. None takes all.
            A draw contains every smaller one of the same seed. Validation and test stay whole.
        captions_per_image: for retrieval. None draws pairs at random. Otherwise each image occurs once per epoch with
            this many of its captions, drawn anew, or with ``all`` of them. ``training.batch_size`` then counts images.
        copies: for retrieval. How many times each image and each caption of a batch is embedded, each time with other
            random drops of its augmentation. All copies of a pair are positive. ESA takes 2, and the term ``contrast``
            with ``positives: hardest``.
    """

    source: str = ""
    features: str | None = None
    text_features: str | None = "auto"
    num_workers: int = Field(default=0, ge=0)
    random_views: bool = True
    allow_outside: bool = False
    merge_captions: bool = True
    limit: Annotated[int, Field(ge=1)] | None = None
    captions_per_image: Annotated[int, Field(ge=1)] | Literal["all"] | None = None
    copies: int = Field(default=1, ge=1)


class OptimizerSpec(Strict):
    """The optimiser.

    Attributes:
        name: adamw or adam.
        learning_rate: the learning rate of all parameters without a multiplier. A phase may set its own.
        weight_decay: the weight decay, which is decoupled for adamw.
        amsgrad: whether to use the AMSGrad variant.
        multipliers: a factor of the learning rate for each prefix of parameter names. The longest prefix wins.
    """

    name: Literal["adamw", "adam"] = "adamw"
    learning_rate: float = Field(default=5e-4, gt=0)
    weight_decay: float = Field(default=1e-4, ge=0)
    amsgrad: bool = False
    multipliers: dict[str, float] = Field(default_factory=dict)


class PhaseSpec(Strict):
    """Some epochs under the same conditions.

    Attributes:
        epochs: the number of epochs.
        least_images: with fewer images for training, the phase is left out, and the run says so.
        learning_rate: the learning rate of these epochs, instead of the optimiser's.
        warmup_epochs: the number of epochs over which the learning rate rises linearly from 0.
        frozen: the prefixes of the names of parameters that do not train.
        objective: dotted overrides of the recipe's objective, for instance ``ranking.miner: all``.
    """

    epochs: int = Field(ge=1)
    least_images: int = Field(0, ge=0)
    learning_rate: float | None = Field(None, gt=0)
    warmup_epochs: float = Field(0.0, ge=0)
    frozen: tuple[str, ...] = ()
    objective: dict[str, Any] = Field(default_factory=dict)


class PlateauSpec(Strict):
    """Lowers the learning rate when validation no longer improves.

    Attributes:
        factor: the factor of each reduction. It multiplies the rates of the phases until the end of the run.
        patience: the number of successive validations without a new best that change nothing. The next one lowers the
            rate, as in ``torch.optim.lr_scheduler.ReduceLROnPlateau``.
        metric: the metric of the validation, such as ``rsum`` or ``i2t_r1``. Answering questions has only ``accuracy``.
        mode: max if larger values are better. min if smaller ones are, as in PVSE's released code for RSUM: the rate is
            then lowered every ``patience + 1`` validations while RSUM stays above its first value.
        threshold: the share of the best by which a value must be better to be a new best (1e-4 in PyTorch).
    """

    factor: float = Field(0.5, gt=0, lt=1)
    patience: int = Field(ge=0)
    metric: str = "rsum"
    mode: Literal["max", "min"] = "max"
    threshold: float = Field(0.0, ge=0, lt=1)


class AverageSpec(Strict):
    """Validating and keeping a mean of the weights over the last steps in place of the weights.

    Attributes:
        decay: share of the mean so far that stays after a step: 0.999 looks back over about 1,000 steps.
    """

    decay: float = Field(0.999, gt=0, lt=1)


class TrainingSpec(Strict):
    """The training of a model.

    Attributes:
        batch_size: the number of positive pairs or questions in a batch, over all processes, or the number of images if
            ``data.captions_per_image`` is set.
        chunk_size: the number of images, and of sentences, that are embedded at a time. The loss and its gradient cover
            the whole batch. Memory follows the chunk, and every item is embedded twice. None embeds a whole batch.
        phases: the phases, which run in order. An empty list only keeps the start.
        plateau: how the learning rate is lowered when validation stagnates. None leaves it to the phases.
        select_by: the metric of the validation whose largest value chooses the best model. None takes RSUM or accuracy.
        average: the exponential moving mean of the weights, which is validated and kept. None takes the weights.
        clip_norm: the largest gradient norm. None does not clip.
        precision: the precision of the towers. Scores and loss are always computed in single precision. ``auto`` is
            bf16 where the device has instructions for it, and fp32 elsewhere.
        device: the device. auto takes the fastest one.
        graphs: whether a GPU takes each step as one piece (``packages/openvse-cuda-graphs``). No GPU has confirmed it
            yet, so ``auto`` is ``off``, and ``on`` is there for a try.
        threads: the number of CPU threads. None leaves PyTorch's choice.
        checkpoint_every_s: the seconds between checkpoints within an epoch. Each epoch ends with one.
        log_every: the number of steps between lines of metrics.jsonl.
        validation_images: the number of images of the split, evenly spread, on which to validate, with their texts or
            questions. None takes all. It is for models that score each pair, which can take longer than an epoch.
    """

    batch_size: int = Field(128, ge=2)
    chunk_size: int | None = Field(None, ge=1)
    phases: tuple[PhaseSpec, ...]
    plateau: PlateauSpec | None = None
    select_by: str | None = None
    average: AverageSpec | None = None
    clip_norm: float | None = Field(2.0, gt=0)
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    graphs: Literal["auto", "on", "off"] = "auto"
    threads: int | None = Field(None, ge=1)
    checkpoint_every_s: float = Field(600.0, gt=0)
    log_every: int = Field(20, ge=1)
    validation_images: int | None = Field(None, ge=1)


class RunRecipe(ModelSpec):
    """The recipe of any task: the spec of a model, and its training.

    Attributes:
        task: a name in the registry of tasks.
        name: the name of the recipe.
        description: a description in words.
        start: the model to begin from: the folder of a run or its best/, a model folder, a short name, or a hub id.
            It provides everything that the recipe omits about the model, and the weights of parts that agree. See
            ``docs/initialise.md``. A mapping is a part that the task makes from the data of the run:
            ``{name: closed_form}`` is the best linear map.
        seed: the seed of the initial weights, the order of the data and everything else that is random.
        data: the data of the run.
        optimizer: the optimiser of all parameters.
        training: batches, phases, precision.
    """

    task: str
    name: str
    description: str = ""
    start: Annotated[str, Field(min_length=1)] | Part | None = None
    seed: int = Field(0, ge=0)
    data: DataSpec = Field(default_factory=DataSpec)
    optimizer: OptimizerSpec = Field(default_factory=OptimizerSpec)
    training: TrainingSpec

    @property
    def start_name(self) -> str | None:
        """The name of the model or part to begin from, or None."""
        return self.start.name if isinstance(self.start, Part) else self.start

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-like values."""
        return self.model_dump(mode="json")
