"""Overrides that pages, headers of recipes and messages print: each key is one of a recipe or of a part."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openvse.aggregators import AGGREGATORS
from openvse.assembly.parts import option_types, part_inside
from openvse.backbones import BACKBONES
from openvse.encoders import TEXT_ENCODERS
from openvse.encoders.image_encoder import ImageEncoder
from openvse.errors import OpenVSEError
from openvse.fusion import FUSIONS
from openvse.objectives import TERMS
from openvse.registry import Registry
from openvse.similarities import SIMILARITIES
from openvse.tasks.recipes import load_recipe
from tests.failures import Failures

ROOT = Path(__file__).parents[2]
PARTS = {
    **{"image.encoder": BACKBONES, "image.aggregator": AGGREGATORS, "objective": TERMS, "fusion": FUSIONS},
    **{"text.encoder": TEXT_ENCODERS, "text.aggregator": AGGREGATORS, "similarity": SIMILARITIES},
}
SECTIONS = "answers|data|fusion|head|image|objective|optimizer|similarity|text|training"
OVERRIDE = re.compile(rf"(?<![\w./-])((?:{SECTIONS})(?:\.[a-z]\w*|\.\d)+)=([\w.]*)")
RECIPES = ("vse_infinity/coco_regions_bigru", "score_attention/vqa2_regions_bigru")


def messages(path: Path) -> Iterator[str]:
    """Yield the strings of a module, with 4 for what is inserted."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if OVERRIDE.search(text) else ():
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "4" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def printed() -> dict[str, str]:
    """Return each key that is printed with a value, and such a value."""
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *(ROOT / "recipes").rglob("*.yaml")]
    texts = [page.read_text() for page in pages]
    texts += [text for path in (ROOT / "src").rglob("*.py") for text in messages(path)]
    return dict(pair for text in texts for pair in OVERRIDE.findall(text) if pair[0] != "data.4")


def options(registry: Registry[Any]) -> dict[str, list[Registry[Any]]]:
    """Return the options of all parts of a kind, with the kinds of the parts that they take."""
    found: dict[str, list[Registry[Any]]] = {"name": []}
    makers = [registry.get(name) for name in registry.names()]
    for maker in (*makers, *([ImageEncoder] if registry is BACKBONES else [])):
        for option, hint in option_types(maker).items():
            inside = part_inside(hint)
            found.setdefault(option, []).extend([inside[0]] if inside else [])
    return found


def is_known(key: str, value: str) -> bool:
    """Return whether a part has the option, or a recipe the key, of an override."""
    kind = next((kind for kind in PARTS if key.startswith(f"{kind}.")), None)
    if kind is None:
        return any("unknown key" not in refusal(recipe, f"{key}={value}") for recipe in RECIPES)
    path, registries = key.removeprefix(f"{kind}.").split("."), [PARTS[kind]]
    path = path[1:] if kind == "objective" else path  # a term has any name
    for option in path:
        known = [options(registry) for registry in registries]
        if registries == [TERMS] and option in ("weight", "relative_to"):
            return True
        if not any(option in each for each in known):
            return False
        registries = [inner for each in known for inner in each.get(option, [])]
    return True


def refusal(recipe: str, override: str) -> str:
    try:
        load_recipe(recipe, [override])
    except OpenVSEError as error:
        return str(error)
    return ""


@pytest.mark.medium
def test_printed_keys_are_keys_of_a_recipe_or_of_a_part() -> None:
    keys = printed()
    assert len(keys) > 50 and "image.encoder.global_vector" in keys  # in a note of openvse convert
    failures = Failures()
    for key, value in keys.items():
        with failures.of(key, value):
            assert is_known(key, value)
    assert not failures, failures


def test_a_key_that_is_gone_is_seen() -> None:
    gone = ("image.encoder.pooled_by", "image.encoder.size_augmentation", "training.epochs", "data.path")
    for key in (*gone, "objective.ranking.criterion.gap", "text.encoder.tokenizer.gone"):
        assert not is_known(key, "bigru"), key
