"""The model from which a run begins. Parts that agree take its weights, and the others start untrained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from openvse.aggregators.composed import Gated, PooledLinear
from openvse.assembly.parts import option_as_said, parameters
from openvse.backbones import BACKBONES
from openvse.encoders import TEXT_ENCODERS, BiGRU, ImageEncoder
from openvse.encoders.projections import Encoder
from openvse.errors import ModelError, RecipeError
from openvse.model.base import Model
from openvse.model.two_tower import Tower
from openvse.registry import Configured, Registry
from openvse.specs.model import ModelSpec, Part, TowerSpec, without_folders

_OF_TRAINING = frozenset(
    {
        "augment",
        "augmentation",
        "augmentation_rate",
        "dropout",
        "fine_tune",
        "freeze_words",
        "gate_start",
        "gradient_checkpointing",
        "image_size",
        "lora",
        "made_by",
        "max_length",
        "max_words",
        "min_count",
        "projection_start",
        "protect_boundaries",
        "size_augmentation",
        "train_base",
        "train_blocks",
        "unknown",
        "word_vectors",
    }
)
"""Options that decide how a part trains or its input, but not the meaning of its weights."""

_AROUND = frozenset({"projection", "global_vector", "pooled"})
"""Options of an encoder that decide on the layers after its network."""

_CONTEXT = frozenset({"assets", "captions", "grow", "embed_dim", "input_dim", "backbone", "side"})
"""Arguments that the build decides. A difference in width shows in the shapes of the weights."""


@dataclass(frozen=True)
class Origin:
    """The origin of a part's weights in a new model, with a note: the reason for new weights, or the additions."""

    part: str
    taken: bool
    note: str = ""

    def __str__(self) -> str:
        """Return ``image.encoder: taken`` or ``text.aggregator: new (gpo in place of mean)``."""
        return f"{self.part}: {'taken' if self.taken else 'new'}" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True)
class Start:
    """The model from which a run begins: its name in the recipe, and the run's own copy of its folder."""

    name: str
    model: Model
    folder: Path

    def assets_for(self, side: str, mine: TowerSpec | None) -> Path | None:
        """Return the folder from which an encoder is built if its network is the start's, otherwise None."""
        theirs = tower_of(self.model.spec, side)
        if mine is None or theirs is None or differences(side, mine.encoder, theirs.encoder):
            return None
        return self.folder

    def provenance(self) -> dict[str, str]:
        """Return the record of a new model's start: the fingerprint, and no folder of this machine."""
        return {"name": str(without_folders(self.name)), "fingerprint": self.model.fingerprint}

    def give(self, model: Model) -> list[Origin]:
        """Copy the weights of all parts that agree into a model built with ``assets_for``, and return the origins.

        Raise RecipeError if no part agrees, or if a fine-tuned backbone would replace the original one.
        """
        origins = take_weights(model, self.model)
        if not any(origin.taken for origin in origins):
            reasons = "; ".join(map(str, origins))
            raise RecipeError(f"start: no part of {self.name} fits the recipe ({reasons}): leave it out, or name parts")
        return origins


@torch.no_grad()
def take_weights(model: Model, start: Model) -> list[Origin]:
    """Copy the weights of all parts that agree from one model to another. See ``Start.give``."""
    origins: list[Origin] = []
    for name, child in model.named_children():
        theirs = getattr(start, name, None)
        if isinstance(child, Tower):
            specs = tower_of(model.spec, name), tower_of(start.spec, name)
            origins += _take_tower(name, child, theirs if isinstance(theirs, Tower) else None, specs)
        elif name == "classifier" and isinstance(theirs, nn.Linear):
            origins.append(_take_answers(model, start))
        else:
            origins += _take_part(name, child, theirs)
    return origins


def tower_of(spec: ModelSpec, side: str) -> TowerSpec | None:
    """Return the spec of a side, or None if the model does not have it."""
    tower = getattr(spec, side, None)
    return tower if isinstance(tower, TowerSpec) else None


def differences(side: str, mine: Part, theirs: Part) -> list[str]:
    """Return the differences between the networks of two encoders of a side, none if their weights mean the same."""
    if mine.name != theirs.name:
        return [f"{mine.name} in place of {theirs.name}"]
    registry: Registry[Any] = BACKBONES if side == "image" else TEXT_ENCODERS
    defaults = {key: each.default for key, each in parameters(registry.get(mine.name)).items()}
    left_out = _OF_TRAINING | _AROUND
    given, had = (
        {key: value for key, value in without_folders(part.options).items() if key not in left_out}
        for part in (mine, theirs)
    )
    return _differing(given, had, defaults)


def _differing(given: Mapping[str, Any], had: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    pairs = {
        key: (_plain(given.get(key, defaults.get(key))), _plain(had.get(key, defaults.get(key))))
        for key in sorted(given.keys() | had.keys())
    }
    return [f"{key} {ours} in place of {theirs}" for key, (ours, theirs) in pairs.items() if ours != theirs]


def _stated(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a built part as they are written in a recipe."""
    stated = {}
    for key, value in options.items():
        try:
            stated[key] = option_as_said(value, key)
        except ModelError:  # an option of a plug-in's part, compared by its kind alone
            stated[key] = type(value).__name__
    return dict(without_folders(stated))


def _plain(value: Any) -> Any:
    """Return a value in its form for comparison: lists for tuples, its name for a part without options."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping) and value.keys() == {"name"}:
        return value["name"]
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, Mapping) else value


def _take_tower(
    side: str, mine: Tower[Any], theirs: Tower[Any] | None, specs: tuple[TowerSpec | None, TowerSpec | None]
) -> Iterator[Origin]:
    own, other = specs
    if theirs is None or own is None or other is None:
        yield Origin(side, False, "the start has no such side")
        return
    reasons = differences(side, own.encoder, other.encoder)
    yield from _take_encoder(f"{side}.encoder", mine.encoder, theirs.encoder, reasons)
    part, names = f"{side}.aggregator", (own.aggregator.name, other.aggregator.name)
    if isinstance(mine.aggregator, Gated) and _difference(mine.aggregator, theirs.aggregator):
        yield from _take_part(f"{part}.base", mine.aggregator.base, theirs.aggregator)
        yield Origin(f"{part}.pool", False, f"{type(mine.aggregator.pool).__name__} behind a gate")
        return
    if isinstance(mine.aggregator, PooledLinear) and _difference(mine.aggregator, theirs.aggregator):
        yield from _take_part(f"{part}.inner", mine.aggregator.inner, theirs.aggregator)
        yield Origin(part, False, "a linear map")
        return
    note = "" if names[0] == names[1] else f"{names[0]} in place of {names[1]}"
    yield from _take_part(part, mine.aggregator, theirs.aggregator, note)


def _take_encoder(part: str, mine: Encoder, theirs: Encoder, reasons: Sequence[str]) -> Iterator[Origin]:
    """Copy an encoder whole, or its children that agree."""
    if type(mine) is not type(theirs):
        yield Origin(part, False, "; ".join(reasons))
        return
    if isinstance(mine, BiGRU) and isinstance(theirs, BiGRU):
        yield from _take_bigru(part, mine, theirs, reasons)
        return
    images = isinstance(mine, ImageEncoder) and isinstance(theirs, ImageEncoder)
    if images and not reasons and theirs.fine_tune and not mine.fine_tune:
        raise RecipeError(
            f"{part}: the start has fine-tuned its backbone, so stored features of the original do not fit it: set "
            f"{part}.fine_tune=true, and freeze the backbone by training.phases.0.frozen=[{part}.backbone]"
        )
    origins: list[Origin] = []
    for name, child in mine.named_children():
        note = "; ".join(reasons) if name == "backbone" else ""
        origins += _take_part(f"{part}.{name}", child, getattr(theirs, name, None), note)
    whole = {origin.taken for origin in origins}
    if whole == {True}:
        yield Origin(part, True)
    elif whole == {False} and reasons:
        yield Origin(part, False, "; ".join(reasons))
    else:
        yield from origins


def _take_bigru(part: str, mine: BiGRU, theirs: BiGRU, reasons: Sequence[str]) -> Iterator[Origin]:
    """Copy the vectors word by word, independent of their ids, and the GRU where it agrees."""
    if mine.words.embedding_dim != theirs.words.embedding_dim:
        yield Origin(part, False, "; ".join(reasons))
        return
    rows = [(mine.vocabulary.id_of(word), theirs.vocabulary.id_of(word)) for word in mine.vocabulary.words]
    specials = len(mine.vocabulary) - len(mine.vocabulary.words)
    known = [*((index, index) for index in range(specials)), *(pair for pair in rows if pair[1] >= specials)]
    _copy_rows(mine.words.weight, theirs.words.weight, known)
    added = len(mine.vocabulary) - len(known)
    words = f"{added:,} words added to {len(known) - specials:,}" if added else ""
    gru = list(_take_part(f"{part}.gru", mine.gru, theirs.gru, "; ".join(reasons)))
    if all(origin.taken for origin in gru):
        yield Origin(part, True, words)
        return
    yield Origin(f"{part}.words", True, words)
    yield from gru


def _copy_rows(mine: Tensor, theirs: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy rows of one weight into another. The pairs are (own row, row of the start)."""
    if pairs:
        own, other = torch.tensor(pairs).T
        mine[own] = theirs[other]


def _take_answers(model: Any, start: Any) -> Origin:
    """Copy the rows of the last layer of an answerer, answer by answer."""
    mine, theirs = model.classifier, start.classifier
    if mine.in_features != theirs.in_features:
        return Origin("classifier", False, f"{mine.in_features} wide in place of {theirs.in_features}")
    places = {answer: index for index, answer in enumerate(start.answers.answers)}
    answers = model.answers.answers
    known = [(index, places[answer]) for index, answer in enumerate(answers) if answer in places]
    for name in ("weight", "bias"):
        _copy_rows(getattr(mine, name), getattr(theirs, name), known)
    added = len(answers) - len(known)
    return Origin("classifier", bool(known), f"{added:,} answers added to {len(known):,}" if added else "")


def _take_part(part: str, mine: nn.Module, theirs: Any, note: str = "") -> Iterator[Origin]:
    """Copy a whole part if kind, options and shapes agree. Parts without weights are only reported if they differ."""
    if not mine.state_dict():
        other = isinstance(theirs, nn.Module) and type(theirs) is not type(mine)
        if note or other:
            yield Origin(part, False, note or f"{type(mine).__name__} in place of {type(theirs).__name__}")
        return
    note = note or _difference(mine, theirs)
    if not note:
        mine.load_state_dict(theirs.state_dict())
    yield Origin(part, not note, note)


def _difference(mine: nn.Module, theirs: Any) -> str:
    """Return why the weights of two modules do not agree. The text is empty if they agree."""
    if not isinstance(theirs, nn.Module):
        return "the start has none"
    if type(mine) is not type(theirs):
        return f"{type(mine).__name__} in place of {type(theirs).__name__}"
    if isinstance(mine, Configured) and isinstance(theirs, Configured):
        options, had = (
            {key: value for key, value in each.arguments().items() if key not in _CONTEXT | _OF_TRAINING}
            for each in (mine, theirs)
        )
        defaults = {key: each.default for key, each in parameters(type(mine)).items()}
        if reasons := _differing(_stated(options), _stated(had), _stated(defaults)):
            return "; ".join(reasons)
    ours, others = ({key: list(value.shape) for key, value in each.state_dict().items()} for each in (mine, theirs))
    return next(
        (
            f"{key} is {ours.get(key)} in place of {others.get(key)}"
            for key in ours | others
            if ours.get(key) != others.get(key)
        ),
        "",
    )
