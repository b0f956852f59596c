"""Recipes from YAML: a file or a shipped name, its base, dotted overrides, and the parts from its start."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from openvse.errors import RecipeError, TextError, choices, decoded_text, nearest
from openvse.registry import installed, load_part
from openvse.specs.model import Part
from openvse.specs.recipe import RunRecipe

SpecT = TypeVar("SpecT", bound=BaseModel)
Overrides: TypeAlias = "str | Sequence[str | tuple[str, Any]] | Mapping[str, Any]"
"""New settings of a recipe: ``key.path=value`` with the value in YAML, several of these, or values by their keys."""

SHIPPED = (Path(__file__).parents[1] / "recipes", Path(__file__).parents[3] / "recipes")

FROM_START = "start"
"""The value in a recipe of a side or a part that comes from the start. Leaving the key out means the same."""

GATED = "gated"
"""The aggregator that adds a pooling to another one, its ``base``. With a start, this is the start's aggregator."""

AROUND = {GATED: "base", "pooled_linear": "pool"}
"""The option of an aggregator that may be ``start``: the start's aggregator inside it."""

_RATE = "optimizer.learning_rate, or training.phases.0.learning_rate of one phase"
_MEANT = {
    **dict.fromkeys(("lr", "learning_rate"), _RATE),
    **dict.fromkeys(("epochs", "num_epochs"), "training.phases.0.epochs (or .1 and so on, a later phase)"),
    **dict.fromkeys(("batch_size", "batch"), "training.batch_size"),
    **dict.fromkeys(("dim", "embedding_dim"), "embed_dim"),
}
"""Keys of other programs, and those of a recipe that mean the same."""

_FOLDER = "rows"  # a file of this name gives its rows the names of files beside it: x/a for the row a of x/rows.yaml

_SIDES = ("image", "text")
_PARTS = ("encoder", "aggregator")

_PLAIN = {
    "null": "~|null|Null|NULL|",
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "merge": "<<",
}
"""What is not text without quotation marks: the core schema of YAML 1.2 (section 10.3.2), and ``<<`` of YAML 1.1."""


class _Whole(int):
    written: str

    def __str__(self) -> str:
        """Return it as it is written, which a schema that asks for text takes: a folder may be called 010."""
        return self.written


class _Real(float):
    written: str
    __str__ = _Whole.__str__


class _Dumper(yaml.SafeDumper):
    """Writes text between quotation marks if YAML 1.1 or 1.2 would read anything else without them."""


def _number(_: Any, node: yaml.ScalarNode) -> _Whole | _Real:
    text: str = node.value.lower()
    if node.tag.endswith("int"):
        number: _Whole | _Real = _Whole(text, 16 if "x" in text else 8 if "o" in text else 10)
    else:
        number = _Real(text.replace(".inf", "inf").replace(".nan", "nan"))
    number.written = node.value
    return number


_BASE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's loader is ten times as fast
_LOADER: Any = type("_Loader", (_BASE,), {"yaml_implicit_resolvers": {}})
for _name, _text in _PLAIN.items():
    for _class in (_LOADER, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_text})$"), None)
for _name in ("int", "float"):
    _LOADER.add_constructor(f"tag:yaml.org,2002:{_name}", _number)
_Dumper.add_representer(_Whole, _Dumper.represent_int)
_Dumper.add_representer(_Real, _Dumper.represent_float)

_MAX_YAML = 1 << 24  # characters
_MAX_DEPTH = 100
_MAX_NODES = 1_000_000


def parse_yaml(text: str) -> Any:
    """Return the content of a text of YAML, which may come from anybody. Raise RecipeError if it cannot be read."""
    if len(text) > _MAX_YAML:
        raise RecipeError(f"not read: it has {len(text):,} characters, but at most {_MAX_YAML:,} are allowed")
    try:
        _check_nodes(yaml.parse(text, _LOADER))
        return yaml.load(text, _LOADER)
    except RecipeError:
        raise
    except Exception as error:  # invalid numbers and dates raise almost any error
        raise RecipeError(f"not YAML ({' '.join(str(error).split())})") from error


def dump_yaml(tree: Any, *, flow: bool = False, width: float = 80) -> str:
    """Return plain values as a text of YAML, which ``parse_yaml`` reads again."""
    return yaml.dump(tree, None, _Dumper, default_flow_style=flow, width=width, sort_keys=False, allow_unicode=True)


def _check_nodes(events: Iterable[yaml.Event]) -> None:
    """Raise RecipeError for YAML so deep that libyaml would end the process, or whose aliases expand to too much."""
    nodes, sizes, around = 0, dict[str | None, int](), list[tuple[str | None, int]]()
    for event in events:
        nodes += 1
        match event:
            case yaml.CollectionStartEvent():
                around.append((event.anchor, nodes))
                sizes[event.anchor] = _MAX_NODES  # an alias to an enclosing node has no end
            case yaml.CollectionEndEvent():
                anchor, before = around.pop()
                sizes[anchor] = nodes - before
            case yaml.AliasEvent():
                nodes += sizes.get(event.anchor, 0)
        if len(around) > _MAX_DEPTH or nodes > _MAX_NODES:
            raise RecipeError(f"not read: it has more than the {_MAX_DEPTH} levels or {_MAX_NODES:,} values allowed")


def recipe_folders() -> Iterator[Path]:
    """Yield the folders of recipes: openvse's own, and those of installed packages, which are imported.

    A package names the package of such a folder in an entry point, ``recipes.NAME``.
    """
    yield next((root for root in SHIPPED if root.is_dir()), SHIPPED[0])
    yield from (Path(load_part(entry).__path__[0]) for entry in installed("recipes").values())


def list_recipes(within: str = "") -> list[str]:
    """Return the names of the recipes of openvse and of packages, such as ``vse_infinity/flickr8k_grids_cpu``.

    Args:
        within: the beginning of the names, before ``/`` or ``_``, or a YAML file, whose recipes are listed instead.
    """
    if (own := Path(within)).is_file():
        return _names(own)
    files = (path for root in recipe_folders() for path in root.rglob("[!_]*.yaml"))
    names = (name for path in files if path.parent.name != "_base" for name in _names(path))
    return sorted(name for name in names if not within or name.startswith((f"{within}/", f"{within}_")))


def override_list(given: Overrides) -> list[tuple[str, Any]]:
    """Return overrides as keys and values, from any of their forms. ``data=photos`` is ``data.source=photos``."""
    if isinstance(given, str):
        given = [given]
    pairs = given.items() if isinstance(given, Mapping) else given
    read = [parse_override(each) if isinstance(each, str) else each for each in pairs]
    plain = [(key, str(value) if isinstance(value, Path) else value) for key, value in read]
    return [("data.source" if key == "data" and isinstance(new, str) else key, new) for key, new in plain]


def read_recipe(source: str | Path, overrides: Overrides = ()) -> dict[str, Any]:
    """Read a recipe as nested mappings, merge it over its base and apply overrides. Nothing else is checked.

    Args:
        source: a YAML file, or the name of a shipped recipe. The row ``gcn`` of a file ``mine.yaml`` is called
            ``mine_gcn``, like a file beside it.
        overrides: see ``Overrides``. ``training.phases.0.epochs=2`` changes a list item.

    Raises:
        RecipeError: there is no such recipe, it is not YAML, or an override does not fit into it.
    """
    tree = copy.deepcopy(_read(*_find(str(source)), seen=()))  # the files that were read are kept
    for path, value in override_list(overrides):
        tree = apply_override(tree, path, value)
    return tree


def parse_override(text: str) -> tuple[str, Any]:
    """Read ``key.path=value``, with the value in YAML. Raise RecipeError for any other form.

    Where a recipe takes text (``data.source``), the value is the text itself, unless it is quoted or a mapping.
    """
    path, separator, value = text.partition("=")
    if not separator or not path:
        meant = f"; did you mean data.source={text}?" if Path(text).exists() else ""
        raise RecipeError(f"override {text!r} is not of the form key.path=value{meant}")
    if value[:1] not in ("'", '"', "{") and _takes_text("data.source" if path == "data" else path, value):
        return path, value
    try:
        return path, parse_yaml(value)
    except RecipeError as error:
        raise RecipeError(f"override {text!r:.200}: the value is {error}") from error


def _takes_text(path: str, value: str) -> bool:
    """Return whether every recipe takes a value as text, which null is not if the value may be None."""
    kind: Any = RunRecipe
    for key in path.split("."):
        field = kind.model_fields.get(key) if _is_model(kind) else None
        kind = None if field is None else field.annotation
    or_none = str in (getattr(each, "__origin__", each) for each in get_args(kind))
    return kind is str or (or_none and re.fullmatch(_PLAIN["null"], value) is None)


def validated(kind: type[SpecT], tree: Mapping[str, Any]) -> SpecT:
    """Check nested mappings against a schema. Raise RecipeError, with path and nearest key, if one is wrong."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise RecipeError(f"recipe: {describe(error, kind, tree=tree)}") from error


def apply_override(tree: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy of ``tree`` with the value at a dotted path replaced.

    The shorthand of a part (``miner: all``) is expanded to a mapping if the path goes below it.

    Raises:
        RecipeError: the path leads through a value that has no keys.
    """
    changed = copy.deepcopy(dict(tree))
    node: Any = changed
    *parents, last = path.split(".")
    for depth, key in enumerate(parents):
        place = _place(node, key, path)
        child = node[place] if isinstance(node, list) else node.get(key, {})
        if isinstance(child, str):
            child = {"name": child}
        if not isinstance(child, dict | list):
            raise RecipeError(
                f"override {path}: {'.'.join(parents[: depth + 1])} is {child!r} and has no keys: give its own value"
            )
        node[place] = child
        node = child
    node[_place(node, last, path)] = value
    return changed


def describe(
    error: ValidationError,
    model: type[BaseModel],
    prefix: str = "",
    listed_by: str = "openvse list recipes NAME",
    tree: Mapping[str, Any] | None = None,
) -> str:
    """Return the first problem of a validation in one line: place, given value, allowed values.

    Args:
        model: the schema.
        prefix: the path of the validated tree.
        listed_by: the command that lists the keys.
        tree: what was validated. An unknown key is answered with the places of keys that are called the same.
    """
    first = error.errors()[0]
    where = ".".join([prefix, *map(str, first["loc"])] if prefix else map(str, first["loc"]))
    more = f" (and {rest} more)" if (rest := len(error.errors()) - 1) else ""
    if first["type"] == "extra_forbidden":
        allowed, key = _allowed(model, first["loc"][:-1]), str(first["loc"][-1])
        below = f"{prefix}." if prefix else ""
        paths = dict.fromkeys(f"{below}{each}" for each in (*_keys(tree), *_keys(model)))
        places = [each for each in paths if each.endswith(f".{key}") and each != where]
        told = _MEANT.get(key) or " or ".join(places[:3])
        meant = f"; did you mean {told}?" if told else nearest(key, allowed)
        return f"unknown key {where}{meant}{choices(allowed, listed_by)}{more}"
    if first["type"] == "value_error":  # an error of openvse, which names the given value
        return f"{where}: {first['ctx']['error']}{more}".removeprefix(": ")
    given = "" if first["type"] == "missing" else f", got {first['input']!r}"
    return f"{where}: {first['msg'].lower()}{given}{more}"


def is_complete(tree: Mapping[str, Any], fields: Iterable[str]) -> bool:
    """Return whether a recipe gives all fields of the spec of its task, so that the spec of a start is not needed."""
    for field in fields:
        value = tree.get(field, FROM_START)
        if value == FROM_START or (field in _SIDES and isinstance(value, Mapping) and not _own(value)):
            return False
    return True


def inherited(tree: Mapping[str, Any], spec: Mapping[str, Any], fields: Iterable[str], start: str) -> dict[str, Any]:
    """Return a recipe whose gaps are filled from the spec of its start.

    A part with a name is the recipe's own. A part that is left out, or called ``start``, is the start's. Options
    without a name change the options of the start's part. The aggregator ``gated`` is the recipe's own, and its
    ``base`` is a part in the same sense. Fields that the task of the start lacks keep their default.
    """
    filled = dict(tree)
    taken: list[str] = []
    for field in fields:
        if field in _SIDES:
            filled[field] = _side(field, tree.get(field, FROM_START), spec.get(field), start, taken)
        elif tree.get(field, FROM_START) == FROM_START:
            if field in spec:
                filled[field] = spec[field]
            elif field in tree:
                raise RecipeError(f"recipe: {field} is 'start', but {start} has no {field}: name one")
    width, own = filled.get("embed_dim"), spec.get("embed_dim")
    if taken and width != own:
        raise RecipeError(
            f"recipe: embed_dim is {width}, but {taken[0]} of {start} has the width {own}: leave embed_dim out, or "
            f"name the parts of both sides (a named part starts untrained where its width differs)"
        )
    return filled


def about(source: str) -> tuple[str, str]:
    """Return the comments at the head of a file and at its row, which say how to train it, and its description."""
    path, row = _find(source)
    text = path.read_text(encoding="utf-8")
    notes = re.findall(rf"\A((?:#.*\n)*)|^  {re.escape(row)}:\n((?: +#.*\n)*)", text, re.MULTILINE)
    told = re.sub("^ +", "", "".join(map("".join, notes)), flags=re.MULTILINE)
    return told, _rows(path)[""][0].get("description", "")


def _find(source: str, beside: Path | None = None) -> tuple[Path, str]:
    """Return the file and the row of a recipe. The name of a base begins at the recipe that gives it."""
    named = Path(source) if beside is None else beside.parent / source

    def files() -> Iterator[Path]:
        yield named
        yield from (root / f"{source}.yaml" for root in recipe_folders())

    if whole := next((file for file in files() if file.is_file()), None):
        return whole, ""
    near = ""
    for file in files():
        words = file.name.removesuffix(".yaml").split("_")
        for count in range(len(words) - 1, -1 if file.parent.name else 0, -1):
            if (whole := file.with_name(f"{'_'.join(words[:count]) or _FOLDER}.yaml")).is_file():
                row, rows = "_".join(words[count:]), _rows(whole)
                if row in rows:
                    return whole, row
                near = near or (_called(whole) if len(rows) > 1 else "")
    names = list_recipes(near)
    raise RecipeError(
        f"{'no recipe' if beside is None else f'{beside}: there is no base'} {source!r}{nearest(source, names)}"
        f"{choices(names, f'openvse list recipes {near}'.strip())}: give a YAML file, or the name of a recipe"
    )


def _called(file: Path, row: str = "") -> str:
    """Return the name of a file or of its row: the name of a shipped recipe, or a path."""
    if row:
        file = file.parent / (row if file.stem == _FOLDER else f"{file.stem}_{row}")
    root = next((root for root in recipe_folders() if file.is_relative_to(root)), None)
    inside = "" if root is None else file.relative_to(root).as_posix().removesuffix(".yaml")
    return inside.removesuffix(f"/{_FOLDER}") or str(file)


def _names(file: Path) -> list[str]:
    """Return the names of the recipes of a file. A file without a name holds only the keys that its rows share."""
    rows = _rows(file)
    return [_called(file, row) for row in rows if row or len(rows) == 1 or "name" in rows[""][0]]


def _rows(file: Path) -> dict[str, list[dict[str, Any]]]:
    """Return each recipe of a file, the file itself as ``""``: its keys, after the keys of the rows around it."""
    return _rows_of(file, file.read_bytes())


@lru_cache(maxsize=256)  # more than all shipped files
def _rows_of(file: Path, content: bytes) -> dict[str, list[dict[str, Any]]]:
    try:
        tree = parse_yaml(decoded_text(content, file))
    except (RecipeError, TextError) as error:
        raise RecipeError(f"recipe {file} is {error}") from error
    if not isinstance(tree, dict):
        raise RecipeError(f"recipe {file} holds {type(tree).__name__}, not keys and values")
    return dict(_below(file, "", [tree]))


def _below(file: Path, row: str, around: list[Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    *above, tree = around
    rows = tree.get("rows", {}) if isinstance(tree, dict) else tree
    if not isinstance(rows, dict):
        raise RecipeError(f"recipe {file}: rows are names with the keys and values of each, got {rows!r:.60}")
    own = [*above, {key: value for key, value in tree.items() if key != "rows"}]
    yield row, own
    for name, below in rows.items():
        yield from _below(file, f"{row}_{name}" if row else str(name), [*own, below])


def _read(path: Path, row: str, seen: tuple[tuple[Path, str], ...]) -> dict[str, Any]:
    if (path.resolve(), row) in seen:
        raise RecipeError(f"recipe {path}: its bases lead back to itself: remove one of them")
    around, names, called = _rows(path)[row], _names(path), _called(path, row)
    if called not in names:
        shared = choices(names, f"openvse list recipes {_called(path)}")
        raise RecipeError(f"recipe {path} holds only the keys that its rows share{shared}: name one of them")
    base = next((level["base"] for level in reversed(around) if level.get("base")), None)
    tree = {} if base is None else _read(*_find(str(base), path), (*seen, (path.resolve(), row)))
    for level in around:  # the description of a base does not describe the recipes built on it
        tree = merged({key: value for key, value in tree.items() if key != "description"}, level)
    if row:
        own = Path(called).name if Path(called).parent == path.parent else called
        own = f"{around[0]['name']}_{row}" if "name" in around[0] else own
        tree["name"] = around[-1].get("name", own)
    return {key: value for key, value in tree.items() if key != "base"}


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings key by key. A part (a mapping with a name) replaces the whole part of the base.

    The shorthand of a part in the base is expanded to a mapping if options are added to it.
    """
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, dict) and isinstance(below, str):
            below = {"name": below}
        if isinstance(value, dict) and isinstance(below, dict) and "name" not in value:
            result[key] = merged(below, value)
        else:
            result[key] = value
    return result


def _place(node: Any, key: str, path: str) -> Any:
    """Return a key of a mapping, or the position in a list that it names."""
    if not isinstance(node, list):
        return key
    if not key.isdigit() or int(key) >= len(node):
        raise RecipeError(f"override {path}: {key!r} is not a position in a list of {len(node)} (0 to {len(node) - 1})")
    return int(key)


def _allowed(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys that are allowed at a place of the schema."""
    for key in loc:
        if key not in model.model_fields:
            continue  # a position in a list, or a name in a mapping
        annotation = model.model_fields[str(key)].annotation
        model = next((kind for kind in (annotation, *get_args(annotation)) if _is_model(kind)), model)
    return sorted(model.model_fields)


def _keys(of: Any, above: str = "") -> Iterator[str]:
    """Yield the dotted path of every key of nested mappings or of a schema, but of lists, whose keys have positions."""
    if _is_model(of):
        of = {key: field.annotation for key, field in of.model_fields.items()}
    for key, value in of.items() if isinstance(of, Mapping) else ():
        yield f"{above}{key}"
        kind: Any = get_origin(value)
        for each in () if kind is tuple else (value, *get_args(value)):
            yield from _keys(each, f"{above}{key}.")


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not Part


def _side(side: str, given: Any, theirs: Any, start: str, taken: list[str]) -> Any:
    """Return a side of the model, and note in ``taken`` the parts that equal the start's."""
    needed = given == FROM_START or (isinstance(given, Mapping) and not _own(given))
    if needed and not isinstance(theirs, Mapping):
        raise RecipeError(f"recipe: {side} comes from {start}, which has no {side} side: name its parts")
    if given == FROM_START:
        taken += [f"{side}.{part}" for part in _PARTS]
        return theirs
    if not isinstance(given, Mapping):
        return given
    filled = dict(given)
    for part in _PARTS:
        wanted = given.get(part, FROM_START)
        wanted = {"name": GATED} if wanted == GATED else wanted
        if wanted == FROM_START:
            filled[part] = theirs[part]
            taken.append(f"{side}.{part}")
        elif not _names_itself(wanted):
            is_around = wanted.get("name") in AROUND
            changed = merged({part: theirs[part]}, {part: wanted})
            filled[part] = _around(wanted, theirs[part]) if is_around else changed[part]
            taken.append(f"{side}.{part}")
    return filled


def _around(wanted: Mapping[str, Any], theirs: Any) -> Any:
    """Put the start's aggregator inside the wanted one. If it is the same one around another, keep it whole."""
    inner = AROUND[wanted["name"]]
    return theirs if _without(inner, wanted) == _without(inner, theirs) else {**wanted, inner: theirs}


def _without(inner: str, part: Any) -> dict[str, Any]:
    options = {"name": part} if isinstance(part, str) else part
    return {
        key: value["name"] if isinstance(value, Mapping) and value.keys() == {"name"} else value
        for key, value in options.items()
        if key != inner
    }


def _own(given: Mapping[str, Any]) -> bool:
    """Return whether a recipe names both parts of a side by itself."""
    return all(_names_itself(given.get(part, FROM_START)) for part in _PARTS)


def _names_itself(part: Any) -> bool:
    """Return whether a recipe describes a part without its start."""
    if not isinstance(part, Mapping):
        return part not in (FROM_START, GATED)
    name = part.get("name")
    inner = part.get(AROUND.get(str(name), ""), FROM_START if name == GATED else None)
    return name is not None and inner != FROM_START
