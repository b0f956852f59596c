"""Lists of the parts with their options, and of the keys of a recipe, for the command line."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, groupby
from operator import and_, eq
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import TypeAdapter

from openvse.errors import RecipeError, choices, nearest
from openvse.files import read_text
from openvse.specs.load import parse_yaml, recipe_folders

if TYPE_CHECKING:
    from openvse.registry import Maker


@dataclass(frozen=True)
class PaperTerm:
    """A term of a paper, its defining papers, the parts that implement it, and recipe settings or commands."""

    name: str
    source: str
    parts: tuple[str, ...] = ()
    usage: tuple[str, ...] = ()


@cache
def paper_terms() -> Mapping[str, tuple[PaperTerm, ...]]:
    """Return the terms by subject, in the order of the documentation."""
    listed: dict[str, tuple[PaperTerm, ...]] = {}
    for file in (Path(__file__).with_name("terms.yaml"), *(each / "_terms.yaml" for each in recipe_folders())):
        written = parse_yaml(read_text(file)) if file.is_file() else {}
        for subject, terms in TypeAdapter(dict[str, tuple[PaperTerm, ...]]).validate_python(written).items():
            listed[subject] = (*listed.get(subject, ()), *terms)
    return listed


DECIDED = {"input_dim", "embed_dim", "side", "assets", "captions"}
"""Arguments of parts that the assembly sets and no recipe can set."""

_OF_POOLING = {"position_dim", "hidden_dim", "num_positions"}
"""Arguments that a pooling passes to its generator and its positions."""


USES = {
    "own": "For a folder of your own:",
    "here": "For data that can be had freely, on a CPU:",
    "paper": "For the data sets of the papers, not trained here. Most need a GPU:",
}
"""The uses of recipes."""


def recipe_facts(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return name, use (a key of ``USES``), description and published figures of recipes."""
    from openvse.specs.load import read_recipe

    facts = []
    for name in names:
        tree, data = read_recipe(name), name.rpartition("/")[2]
        own = data.split("_")[0] in ("folder", "clips", "adapted", "finetune")
        use = "own" if own else "here" if data.endswith("_cpu") or "flickr8k" in data else "paper"
        described, published = tree.get("description", ""), tree.get("published") or []
        facts.append({"name": name, "use": use, "description": described, "published": published})
    return facts


def recipes_by_use(names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the list of recipes. The recipes of a method for one published data set are one entry."""
    from openvse.specs.load import about

    facts = recipe_facts(sorted(names, key=lambda name: "/" in name))
    for use, title in USES.items():
        yield title
        mine = (each for each in facts if each["use"] == use)
        for data, same in groupby(mine, lambda each: re.findall(r"^\w+/[^_]+|$", each["name"])[0]):
            listed = [*same]
            if use == "own" or len(listed) == 1:
                yield from (_wrapped(f"{each['name']}  {each['description']}", 2) for each in listed)
            else:
                yield _wrapped(f"{data}  {about(data)[1].rstrip('.')}: {len(listed)} recipes", 2)
        yield ""
    yield "'openvse list recipes NAME' shows one, or all of a NAME like vse_infinity/coco."


def shown_keys(name: str, rows: Sequence[str], tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text of a recipe with all its keys, between its description and the commands that use it."""
    from openvse.specs.load import about, dump_yaml

    told = about(name)[0]
    head = told + "".join(f"# Row: {each}\n" for each in rows if each != name)
    yield (head + dump_yaml(tree)).rstrip("\n")
    yield "\n# To train, measure and use a model of it:"
    yield from (f"# {each}" for each in _commands(name, told, tree))


def _commands(name: str, told: str, tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield three commands for a recipe, by the command that its file has for it or for the most similar row."""
    lines = re.findall(r"^# openvse train (\S+) ([^#\n]*)", told, re.MULTILINE)
    shared = [sum(accumulate(map(eq, each, name), and_)) for each, _ in lines]  # their equal beginning
    first, settings = lines[shared.index(max(shared))] if lines else (name, "data.source=FOLDER")
    given = dict(each.split("=", 1) for each in settings.split() if "=" in each)
    data = given.get("data.source", "FOLDER")
    stores = {"--features": "data.features", "--text-features": "data.text_features"}
    read = "".join(f" {option} {given[key]}" for option, key in stores.items() if key in given)
    yield f"openvse train {first if first.startswith('-') else name} {settings.strip()} --out runs/mine"
    yield f"openvse evaluate runs/mine --on {data}{read}"
    encoder = (tree.get("image") or {}).get("encoder") or {}
    if encoder.get("name", "precomputed") == "precomputed":  # it sees no image file
        yield f"openvse compare runs/mine runs/other --on {data}{read}"
    elif tree["task"] == "vqa":
        yield "openvse ask runs/mine IMAGE 'a question'"
    elif "tokens" in (part := tree["image"]["aggregator"], isinstance(part, Mapping) and part["name"]):  # no index
        yield "openvse search INDEX 'a sentence' --rerank runs/mine"
    else:
        yield f"openvse index runs/mine {data.rpartition(':')[2]} --out runs/mine/index"


def recipe_rows(names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a list of recipes with their published figures."""
    for each in recipe_facts(names):
        yield _wrapped(f"{each['name']}  {each['description']}", 2)
        for row in each["published"]:
            figures = ", ".join(f"{key} {value:g}" for key, value in row["metrics"].items())
            yield _wrapped(f"{row['source']}: {figures}", 6)


def terms_as_text() -> Iterator[str]:
    """Yield the lines of the terms of the papers, each with its source, parts and usage."""
    from openvse.train_cli.listing import paper_terms

    for subject, terms in paper_terms().items():
        yield f"{subject.upper()}\n"
        for term in terms:
            yield _wrapped(f"{term.name} [{term.source}]", 0)
            yield from (_wrapped(each, 2) for each in (", ".join(term.parts), *term.usage) if each)
            yield ""


def _wrapped(text: str, indent: int) -> str:
    first, rest = " " * indent, " " * (indent + 4)
    wrapper = textwrap.TextWrapper(
        80, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )
    return wrapper.fill(text)


def options_of(part: Maker[Any]) -> dict[str, str]:
    """Return the options of a part, each with its type and its default, as text."""
    from openvse.aggregators.gpo import GENERATORS, POSITIONS
    from openvse.assembly.parts import option_types, parameters

    types = option_types(part)
    inner = any(registry.name_of(part) is not None for registry in (GENERATORS, POSITIONS))
    decided = DECIDED | (_OF_POOLING if inner else set())
    return {
        name: f"{_type(types[name])}{_default(types[name], parameter.default, parameter.empty)}"
        for name, parameter in parameters(part).items()
        if name not in decided
    }


def first_line(part: Maker[Any]) -> str:
    """Return the first line of a part's docstring."""
    doc = getattr(part, "func", part).__doc__ or "(without a docstring)"
    return doc.strip().partition("\n")[0].replace("``", "")


def described(name: str) -> Iterator[str]:
    """Yield lines on every part of a name: kind, purpose, options. Raise RecipeError if there is none."""
    from openvse.datasets.check import describe_data
    from openvse.encoders import ImageEncoder
    from openvse.tasks.front import registries

    if not (having := [registry for registry in registries() if name in registry.names()]):
        names = [each for registry in registries() for each in registry.names()]
        raise RecipeError(f"unknown part {name!r}{nearest(name, names)}{choices(names, 'openvse list parts')}")
    for registry in having:
        part = registry.get(name)
        if registry.kind == "data set":
            yield describe_data(name)
            continue
        yield f"{registry.kind} {name}: {first_line(part)}"
        yield from (f"  {key}: {says}" for key, says in options_of(part).items())
        if registry.kind == "backbone":
            yield "  options of the image encoder around the backbone, in a recipe's image.encoder:"
            around = options_of(ImageEncoder)
            yield from (f"  {key}: {says}" for key, says in around.items() if key != "backbone")


def recipe_keys(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a resolved recipe, as overrides name them, with their values."""
    for key, value in tree.items():
        if "." in key:  # an override of the objective in one phase
            continue
        yield f"{prefix}{key}", value
        below = dict(enumerate(value)) if isinstance(value, list | tuple) else value
        if isinstance(below, Mapping):
            yield from recipe_keys({str(k): v for k, v in below.items()}, f"{prefix}{key}.")


def _type(hint: Any) -> str:
    """Return the type of an option as text. For a part inside a part, it lists the names of the part's kind."""
    from openvse.assembly.parts import part_inside

    if (inside := part_inside(hint)) is not None:
        return f"one of {inside[0].names()}" + (" or None" if type(None) in get_args(hint) else "")
    text = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    return text.replace("Literal", "one of ").replace("typing.", "").replace("collections.abc.", "")


def _default(hint: Any, value: Any, missing: Any) -> str:
    from openvse.assembly.parts import part_inside

    if value is missing:
        return ", required"
    inside, made_by = part_inside(hint), getattr(value, "func", value)
    name = inside[0].name_of(made_by) if inside and callable(made_by) else None
    shown = name or getattr(made_by, "__name__", None)
    return f", default {shown or repr(value)}"
