"""The tables of ``docs/reference/recipe_keys.md``: the keys of a recipe, from the schema and its docstrings."""

from __future__ import annotations

import inspect
import json
import re
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from openvse.retrieval.recipe import PublishedRecalls, RetrievalRecipe
from openvse.specs.model import Part, Strict, TowerSpec
from openvse.specs.recipe import AverageSpec, DataSpec, OptimizerSpec, PhaseSpec, PlateauSpec, TrainingSpec
from openvse_papers.vqa.recipe import AnswersSpec, HeadSpec, VQARecipe

TYPES: dict[object, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    NoneType: "null",
    Part: "part",
}
SECTIONS: list[tuple[str, str, tuple[type[BaseModel], ...]]] = [
    ("The whole recipe", "", (RetrievalRecipe,)),
    ("Visual question answering", "", (VQARecipe,)),
    ("One side of the model", "image. and text.", (TowerSpec,)),
    ("Data", "data.", (DataSpec,)),
    ("Optimiser", "optimizer.", (OptimizerSpec,)),
    ("Training", "training.", (TrainingSpec,)),
    ("Phases of training", "training.phases.N.", (PhaseSpec,)),
    ("Lowering the learning rate", "training.plateau.", (PlateauSpec,)),
    ("Mean of the weights", "training.average.", (AverageSpec,)),
    ("Answers and head", "answers. and head.", (AnswersSpec, HeadSpec)),
    ("Published results", "published.N.", (PublishedRecalls,)),
]


def meanings(spec: type[BaseModel]) -> dict[str, str]:
    """Return the sentence of each attribute, from the docstrings of a class and its bases."""
    found: dict[str, str] = {}
    for each in reversed(spec.__mro__):
        _, _, entries = (inspect.cleandoc(each.__doc__ or "")).partition("Attributes:\n")
        for name, text in re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", entries, flags=re.M | re.S):
            found[name] = " ".join(text.split()).replace("``", "`").replace("|", "\\|").replace("None ", "null ")
    return found


def type_of(annotation: object) -> str:
    """Return a type as a reader of YAML knows it."""
    origin, given = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_of(given[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in given)
    if origin in (Union, UnionType):
        return " or ".join(type_of(each) for each in given)
    if origin in (dict, tuple):
        return f"{'mapping' if origin is dict else 'list'} of {type_of(given[-1] if origin is dict else given[0])}"
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        return "section"
    return TYPES.get(annotation, "anything")


def default_of(field: FieldInfo) -> str:
    """Return the default as YAML, or a word where there is none to write."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Part):
        return f"`{value.name}`"
    if isinstance(value, BaseModel) or value in ({}, ()):
        return "none" if not isinstance(value, BaseModel) else "its defaults"
    return f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`" if value else "empty"


def keys() -> str:
    """Return the tables."""
    lines, written = list[str](), set[tuple[str, str]]()
    for title, prefix, specs in SECTIONS:
        rows = []
        for spec in specs:
            sentences = meanings(spec)
            for name, field in spec.model_fields.items():
                if prefix == "" and ("", name) in written:
                    continue
                written.add((prefix, name))
                rows.append(
                    f"| `{name}` | {type_of(field.annotation)} | {default_of(field)} | {sentences.get(name, '')} |"
                )
        intro = (
            f"Keys below `{prefix.rstrip('.')}`."
            if " and " not in prefix
            else f"Keys below `{prefix.replace('. and ', '` and `').rstrip('.')}`."
        )
        lines.append(f"## {title}\n" + (f"\n{intro}\n" if prefix else ""))
        lines.append("| key | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(lines)
