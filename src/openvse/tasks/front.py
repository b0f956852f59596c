"""The shortest Python API: train a recipe by its name, evaluate a model on a folder, list parts and models."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from openvse.aggregators import AGGREGATORS
from openvse.aggregators.gpo import GENERATORS, POSITIONS
from openvse.backbones import BACKBONES
from openvse.conversion.weights import PUBLISHED
from openvse.datasets import DATASETS
from openvse.encoders import TEXT_ENCODERS
from openvse.encoders.augmentations import AUGMENTATIONS
from openvse.encoders.projections import GLOBAL_VECTORS, PROJECTIONS
from openvse.errors import DataError, RecipeError, check_number, nearest
from openvse.evaluation.arrays import GivenPairs, evaluate_arrays
from openvse.fusion import FUSIONS
from openvse.model.base import CONFIG, WEIGHTS, Model
from openvse.objectives import CRITERIA, MINERS, TERMS
from openvse.pipeline import WorkProgress
from openvse.registry import Registry
from openvse.similarities import SIMILARITIES, Similarity
from openvse.specs import RunRecipe
from openvse.specs.load import Overrides, override_list
from openvse.tasks import task_kind
from openvse.tasks.load import load
from openvse.tasks.recipes import START, load_recipe
from openvse.tasks.run import RunResult, run_recipe
from openvse.tokenization.vocabulary import WORD_SPLITTERS
from openvse.training.kind import Request
from openvse.training.records import Watcher

_logger = logging.getLogger(__name__)


def train(
    recipe: str | Path | RunRecipe,
    data: str | Path | None = None,
    out: str | Path | None = None,
    overrides: Overrides = (),
    *,
    start: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    watcher: Watcher | None = None,
    on_extraction: Callable[[WorkProgress], None] | None = None,
) -> RunResult:
    """Train as a recipe defines. The test split is never read.

    Args:
        recipe: the name of a recipe (``list_recipes``), a YAML file, or the result of ``load_recipe``.
        data: the folder of the images, or another data set. None takes the recipe's.
        out: the folder of the run, by default ``runs/RECIPE-sSEED``: ``recipe.yaml``, ``last.pt``, ``best/``,
            ``metrics.jsonl``, ``tensorboard/``, and with a start also ``start/`` and ``before_after.md``.
        overrides: see ``load_recipe``.
        start: a model to begin from.
        resume: whether to continue the run in ``out``. On the CPU the results equal an uninterrupted run's. If there is
            no run yet, this one begins. ``training.phases`` may differ in future epochs, so a finished run can continue
            with more. The data may have moved, but their pairs must be the same.
        overwrite: whether to replace a run that ``out`` holds. Its stored features are kept.
        watcher: the object that is notified about every step. None logs notes, warnings and a line for each epoch:
            ``logging.basicConfig(level="INFO")`` shows them.
        on_extraction: a function called with the progress of extracting features (``data.features: auto``).

    Returns:
        The run: ``result.best`` is the folder of its model.

    Raises:
        RecipeError: there is no such recipe, or it cannot be built.
        DataError: the data cannot be used.
        TrainingError: the folder holds another run, another process writes there, or the loss is NaN.
        DiskError: the disk is full, or refuses.

    Examples:
        >>> openvse.train("folder", data="photos", out="runs/mine")  # doctest: +SKIP
    """
    given = {"data.source": data, "start": start}
    named = {key: str(value) for key, value in given.items() if value is not None}
    if isinstance(recipe, RunRecipe):
        if named or overrides:
            raise RecipeError("the recipe is read already: give data, start and overrides to load_recipe")
    else:
        copy = Path(out, START) if resume and out is not None else None
        recipe = load_recipe(recipe, [*override_list(overrides), *named.items()], copy=copy)
    folder = out or Path("runs") / f"{recipe.name.replace('/', '_')}-s{recipe.seed}"
    return run_recipe(recipe, folder, resume=resume, overwrite=overwrite, watcher=watcher, on_extraction=on_extraction)


def evaluate(
    images: Any,
    texts: Any,
    relevance: GivenPairs | None = None,
    *,
    similarity: Similarity | None = None,
    name: str = "",
    folds: int = 1,
    resamples: int = 1000,
    seed: int = 0,
    every: bool = False,
    split: str = "test",
) -> Any:
    """Evaluate a model on a data set, ``evaluate(model, "photos")``, or embeddings, ``evaluate(images, texts)``.

    The score of two embeddings is their cosine. Of several embeddings of an item the best pair counts. Images that
    repeat in sequence, equally often (VSE++ and SCAN hold a row for each caption), count once.

    Args:
        images: a model or its place, or float ``[I, D]``, or ``[I, K, D]`` for K embeddings of each image.
        texts: a data set, such as a folder of images with captions, or float ``[T, D]``, or ``[T, K, D]``.
        relevance: which texts belong to which image. By default each image has equally many texts, in the order of the
            images. Otherwise one of: int ``[T]``, the image of each text, int ``[P, 2]``, pairs (image, text), bool
            ``[I, T]``, or a ``Relevance``.
        similarity: a similarity of embeddings in place of the cosine, such as ``openvse.similarities.Order()``.
        name: the name of the data in the report.
        folds: the number of runs of consecutive images that are evaluated separately and averaged (COCO: 5).
        resamples: the number of bootstrap resamples for the intervals. 0 leaves the intervals out.
        every: whether to rank all relevant candidates, for mAP@R, R-Precision, nDCG@10 and MRR.
        split: the part of the data set on which a model is evaluated.

    Returns:
        A report of recalls, RSUM and ranks with their intervals: ``print(report)``, ``report.metrics["rsum"]``.

    Raises:
        DataError: embeddings or relevance have a shape or a number that does not fit, or the data cannot be used.
        ModelError: there is no such model.

    Examples:
        >>> import numpy as np
        >>> evaluate(np.eye(3), np.repeat(np.eye(3), 2, axis=0)).metrics["i2t_r1"]
        100.0
    """
    check_number("resamples", resamples, 0, whole=True)
    if isinstance(images, str | Path | Model) and isinstance(texts, str | Path):
        if relevance is not None or similarity is not None or name:
            raise DataError("the data and the model decide: leave out relevance, similarity and name")
        request = Request(str(texts), split, folds=folds, resamples=resamples, seed=seed, every=every)
        return _evaluate_model(images if isinstance(images, Model) else load(images), request)
    if isinstance(images, str | Path | Model) or isinstance(texts, str | Path):
        raise DataError(
            f"evaluate got {type(images).__name__} and {type(texts).__name__}: give a model and data, or embeddings"
        )
    if split != "test":
        raise DataError(f"split is {split!r}, but embeddings have none: leave it out, or give a model and a data set")
    measure = partial(evaluate_arrays, similarity=similarity, name=name, folds=folds, resamples=resamples)
    return measure(images, texts, relevance, seed=seed, every=every)


def _evaluate_model(model: Model, request: Request) -> Any:
    places = [model.source] if model.source else []
    evaluation = task_kind(model.task).evaluate([model], replace(request, places=places))
    for warning in evaluation.warnings:
        _logger.warning("%s", warning)
    return evaluation.report


def registries() -> list[Registry[Any]]:
    """Return the registries of everything that a recipe may name, in the order of ``openvse list parts``."""
    images = (BACKBONES, PROJECTIONS, AUGMENTATIONS, GLOBAL_VECTORS)
    poolings = (AGGREGATORS, GENERATORS, POSITIONS, FUSIONS)
    texts, training = (TEXT_ENCODERS, WORD_SPLITTERS), (TERMS, MINERS, CRITERIA)
    return [*images, *texts, *poolings, SIMILARITIES, *training, DATASETS]


def list_parts(kind: str) -> list[str]:
    """Return the names of the parts of a kind that a recipe can name, plug-ins included.

    Args:
        kind: such as ``aggregator``, ``similarity`` or ``miner``, in the singular or plural.

    Raises:
        RecipeError: there is no such kind. The error lists all.

    Examples:
        >>> list_parts("miner")
        ['adaptive_top_k', 'all', 'hardest', 'random']
    """
    kinds = {registry.kind: registry.names() for registry in registries()}
    wanted = kind.replace("_", " ")
    for name, names in kinds.items():
        if wanted in (name, f"{name}s", f"{name[:-1]}ies"):
            return names
    raise RecipeError(f"{kind!r} is no kind of part{nearest(wanted, list(kinds))}: give one of {', '.join(kinds)}")


def list_models(folder: str | Path = ".") -> list[str]:
    """Return the sources for ``load``: the runs and models in and below ``folder``, then names of published models.

    Examples:
        >>> "clip-b32" in list_models()
        True
    """
    configs = {each for depth in ("*", "*/*", "*/*/*") for each in Path(folder).glob(f"{depth}/{CONFIG}")}
    found = [each.parent for each in configs if (each.parent / WEIGHTS).is_file()]
    return [*sorted(map(str, found)), *PUBLISHED]
