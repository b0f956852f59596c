"""The papers' terms: what the table names must exist, and what it says to write must build."""

import shlex
from pathlib import Path

import pytest
from typer.core import TyperGroup

from openvse.assembly.parts import KINDS
from openvse.encoders import TEXT_ENCODERS
from openvse.objectives import TERMS
from openvse.retrieval.build import build_model, build_objective
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.similarities import SIMILARITIES
from openvse.specs.load import list_recipes
from openvse.tasks.recipes import load_recipe
from openvse.train_cli.listing import PaperTerm, paper_terms, terms_as_text
from openvse_papers.vqa.recipe import VQARecipe
from tests.failures import Failures
from tests.leaf_commands import whole_program

REGISTRIES = {registry.kind: registry for registry in (*KINDS.values(), TEXT_ENCODERS, SIMILARITIES, TERMS)}
ALL = [term for terms in paper_terms().values() for term in terms]
PAGE = Path(__file__).parent.parent.parent / "docs" / "terms.md"


def named(start: str) -> PaperTerm:
    """Return the one term whose name begins so."""
    (term,) = (term for term in ALL if term.name.startswith(start))
    return term


def settings(term: PaperTerm) -> list[str]:
    return [each for each in term.usage if not each.startswith("openvse ")]


def test_every_part_exists() -> None:
    parts = {part: part.rpartition(" ") for term in ALL for part in term.parts}
    assert [part for part, (kind, _, name) in parts.items() if name not in REGISTRIES[kind].names()] == []


def settings_build(term: PaperTerm) -> None:
    if "task=vqa" in term.usage:
        assert isinstance(load_recipe("score_attention/daquar_grids_cpu", settings(term)), VQARecipe)
        return
    # The diversity loss acts on what PIE-Net alone yields.
    before = settings(named("PIE-Net")) if "objective term diversity" in term.parts else []
    small = ["embed_dim=32", "image.encoder.feature_dim=16"]
    tiny = [*small, *before, *settings(term), "text.encoder.min_count=1"]
    recipe = load_recipe("vse_infinity/coco_regions_bigru", tiny)
    assert isinstance(recipe, RetrievalRecipe)
    model = build_model(recipe, captions=["a red dog"])
    for phase in recipe.training.phases:
        build_objective(recipe, phase, model=model)
    written = str(recipe.to_dict())
    assert all(part.rpartition(" ")[2] in written for part in term.parts if part.startswith("objective"))


@pytest.mark.medium
def test_all_settings_build() -> None:
    failures = Failures()
    for term in ALL:
        with failures.of(term.name):
            if settings(term):
                settings_build(term)
    assert not failures, failures


COMMANDS = [each for term in ALL for each in term.usage if each.startswith("openvse ")]


@pytest.mark.medium
def test_commands_parse() -> None:
    failures, app_command = Failures(), whole_program()
    for line in COMMANDS:
        with failures.of(line):
            command, (_, *words) = app_command, shlex.split(line)
            context = command.make_context("openvse", words)
            while isinstance(command, TyperGroup):
                left = [*context._protected_args, *context.args]
                name, command, words = command.resolve_command(context, left)
                context = command.make_context(name, words, parent=context)
            assert context.params.get("recipe", list_recipes()[0]) in list_recipes()
    assert not failures, failures


def test_adopt_is_found_by_its_name() -> None:
    assert named("AdOpt").parts == ("objective term contrast", "miner adaptive_top_k", "criterion info_nce")
    shipped = load_recipe("vse_2ad/flickr8k_grids_cpu")
    by_table = load_recipe("vse_infinity/flickr8k_grids_cpu", settings(named("AdOpt")))
    assert isinstance(shipped, RetrievalRecipe) and isinstance(by_table, RetrievalRecipe)
    assert by_table.objective == shipped.objective


def test_places_in_the_code_exist() -> None:
    section = PAGE.read_text().split("## In the code\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[2].strip() for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 5
    package = PAGE.parent.parent / "src" / "openvse"
    assert [row for row in rows if not (package / row.strip("`")).exists()] == []


@pytest.mark.medium
def test_the_text_fits_a_terminal() -> None:
    text = "\n".join(terms_as_text())
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(term.name.split()[0] in text for term in ALL)
    assert not any(line.rstrip() != line for line in lines)
