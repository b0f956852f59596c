"""What the documentation shows must work: recipes, data files, and the names of parts."""

from __future__ import annotations

import ast
import inspect
import json
import re
import runpy
import shlex
from pathlib import Path

import pytest
import yaml
from typer.core import TyperGroup

from openvse.aggregators import AGGREGATORS
from openvse.aggregators.gpo import GENERATORS, POSITIONS
from openvse.backbones import BACKBONES
from openvse.datasets import DATASETS, open_corpus, open_questions
from openvse.datasets.check import check_data
from openvse.encoders import TEXT_ENCODERS
from openvse.encoders.augmentations import AUGMENTATIONS
from openvse.encoders.projections import GLOBAL_VECTORS, PROJECTIONS
from openvse.fusion import FUSIONS
from openvse.objectives import CRITERIA, MINERS, TERMS
from openvse.similarities import SIMILARITIES
from openvse.specs.load import list_recipes
from openvse.tasks.recipes import parse_recipe
from openvse.tokenization.vocabulary import WORD_SPLITTERS
from openvse_testing import check_dataset
from tests.failures import Failures
from tests.leaf_commands import whole_program

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
IMAGES = (BACKBONES, PROJECTIONS, AUGMENTATIONS, GLOBAL_VECTORS)
TEXTS = (TEXT_ENCODERS, WORD_SPLITTERS)
FOLDERS = (DOCS, *(ROOT / name for name in ("recipes", "benchmarks", "studies", "examples", ".github")))
PAGES = sorted({*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in folder.rglob("*.md"))})
BLOCK = re.DOTALL | re.MULTILINE
RECIPES = frozenset([*list_recipes(), "boltzmann/folder_cpu", "chan/folder_cpu"])  # the last two are of packages
PROGRAM = whole_program()
POOLINGS = (AGGREGATORS, GENERATORS, POSITIONS, FUSIONS)
PARTS = (*IMAGES, *TEXTS, *POOLINGS, SIMILARITIES, TERMS, MINERS, CRITERIA)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


def table(page: str, heading: str) -> str:
    """Return the first table below a heading."""
    section = (DOCS / page).read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return "\n".join(line for line in section.splitlines() if line.startswith("|"))


def test_recipes_in_the_documentation_are_recipes() -> None:
    found = [parse_recipe(yaml.safe_load(block)) for block in blocks("recipes.md", "yaml")]
    assert [recipe.name for recipe in found] == ["my_vse_infinity"]
    assert sum(phase.epochs for phase in found[0].training.phases) == 25


def test_the_list_of_parts_is_complete() -> None:
    rows = table("recipes.md", "The parts").splitlines()
    listed = {
        registry.kind: sorted(re.findall(r"`(\w+)`", row))
        for registry in PARTS
        for row in rows
        if row.startswith(f"| {registry.kind} ")
    }
    assert listed == {registry.kind: registry.names() for registry in PARTS}


def test_every_pooling_has_its_formula_and_its_options() -> None:
    page = (DOCS / "methods/pooling.md").read_text()
    rows = (row.strip("|").split(" | ") for row in page.splitlines())
    told = {row[0].strip(" `"): row[3:] for row in rows if len(row) == 5}
    decided = {"input_dim", "embed_dim", "side"}  # by the build
    for name in AGGREGATORS:
        options = re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", told[name][1]))
        assert {*options} == {*inspect.signature(AGGREGATORS.get(name)).parameters} - decided, name
        assert AGGREGATORS.get(name).order_aware == (told[name][0] == "yes"), name
    (excepted,) = re.findall(r"with an index,\s+except ([^.]*?), whose", page)
    unserved = {name for name in AGGREGATORS if not AGGREGATORS.get(name).indexable}
    assert {*re.findall(r"`(\w+)`", excepted)} == unserved


def command_lines() -> list[str]:
    """Return every `openvse ...` line of the pages and of the recipes' headers."""
    shell = [block for page in PAGES for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)]
    text = "\n".join(shell).replace("\\\n", " ").replace(" && ", "\n")
    shown = re.findall(r"^openvse .*$", text, flags=re.MULTILINE)
    headers = "\n".join(path.read_text() for path in (ROOT / "recipes").rglob("*.yaml"))
    return shown + re.findall(r"^ *# (openvse .*)$", headers, flags=re.MULTILINE)


def check_command(line: str) -> None:
    """Parse a command line as the program does; a shipped recipe that it names must be there."""
    _, *words = shlex.split(re.sub(r"--plugin \S+ ", "", line), comments=True)
    command = PROGRAM
    context = command.make_context("openvse", words)
    while isinstance(command, TyperGroup):
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, words, parent=context)
    if "/" in (recipe := context.params.get("recipe", "")):
        assert recipe in RECIPES, f"there is no recipe {recipe}"


@pytest.mark.medium
def test_command_lines_parse() -> None:
    failures = Failures()
    for line in sorted(set(command_lines())):
        with failures.of(line):
            check_command(line)
    assert not failures, failures


def test_shown_hits_have_whole_paths_as_printed_ones_have() -> None:
    pages = "".join(page.read_text() for page in PAGES)
    paths = re.findall(r"\b\d+ +0\.\d{4} +(?:likely|possible|unlikely|>?\d+ %) +(\S+)", pages)
    assert len(paths) >= 5
    assert [path for path in paths if not path.startswith("/")] == []


def test_every_data_set_is_described() -> None:
    assert [name for name in DATASETS if f"`{name}`" not in (DOCS / "data.md").read_text()] == []


def test_the_shown_metadata_opens(tmp_path: Path, make_photos) -> None:
    lines = blocks("data.md", "json")[0]
    photos = make_photos(2)
    for line, photo in zip(lines.splitlines(), photos, strict=True):
        target = tmp_path / "set" / json.loads(line)["file_name"]
        target.parent.mkdir(parents=True, exist_ok=True)
        photo.rename(target)
    (tmp_path / "set" / "metadata.jsonl").write_text(lines)
    corpus = open_corpus(tmp_path / "set")
    assert (corpus.relevance.num_images, corpus.relevance.num_texts) == (2, 3)
    assert corpus.problems == ()


def test_the_shown_data_set_opens(tmp_path: Path, make_photos, monkeypatch) -> None:
    monkeypatch.setattr(DATASETS, "_parts", dict(DATASETS._parts))
    exec(blocks("data.md", "python")[0], {"__name__": "mine"})
    (tmp_path / "images").mkdir()
    for number, photo in enumerate(make_photos(2)):
        photo.rename(tmp_path / "images" / f"{number}.jpg")
    (tmp_path / "captions.txt").write_text("0.jpg\tTwo dogs.\n0.jpg\tDogs on a beach.\n1.jpg\tA beach.\n")
    corpus = open_corpus(f"mine:{tmp_path}")
    assert (len(corpus), corpus.captions[1], corpus.problems) == (2, "Dogs on a beach.", ())
    check_dataset("mine", tmp_path)
    findings = check_data(f"mine:{tmp_path}")
    assert [finding.text for finding in findings if not finding.ok] == []
    assert "captions: 3" in [finding.text for finding in findings]


def test_the_shown_table_opens(tmp_path: Path, make_photos) -> None:
    shown = next(block for block in blocks("data.md", "text") if block.startswith("file_name,caption"))
    for number, photo in enumerate(make_photos(2), start=1):
        photo.rename(tmp_path / f"000{number}.jpg")
    (tmp_path / "captions.csv").write_text(shown)
    corpus = open_corpus(tmp_path / "captions.csv")
    assert corpus.splits == ("train", "test")
    assert len(corpus.captions) == 3


def test_the_shown_questions_open(tmp_path: Path, make_photos) -> None:
    for name, photo in zip(("0001.jpg", "0002.jpg"), make_photos(2), strict=True):
        photo.rename(tmp_path / name)
    (tmp_path / "metadata.jsonl").write_text(blocks("asking.md", "json")[0])
    found = open_questions(tmp_path)
    assert [question.answers for question in found.questions] == [("2", "two"), ("yes",), ("brown",)]
    assert found.problems == ()
    shown = next(block for block in blocks("asking.md", "text") if block.startswith("file_name,question"))
    (tmp_path / "questions.csv").write_text(shown)
    assert [question.answers for question in open_questions(tmp_path / "questions.csv").questions] == [
        ("2", "two"),
        ("yes",),
    ]


METHODS_SIDE_BY_SIDE = {"pooling.md", "earlier_systems.md", "systems.md"}


def test_the_pages_of_methods_have_one_form() -> None:
    form = ["Overview", "Formula", "Recipe", "Measured", "Deviations"]
    pages = [page for page in (DOCS / "methods").glob("*.md") if page.name not in METHODS_SIDE_BY_SIDE]
    headings = {page.name: re.findall(r"^## (.*)$", page.read_text(), flags=re.MULTILINE)[:5] for page in pages}
    assert {page: found for page, found in headings.items() if found != form} == {}


def test_links_lead_somewhere() -> None:
    """To files that are there, and to headings that they have."""
    broken = [
        f"{page.relative_to(ROOT)}: {target}#{place}"
        for page in PAGES
        for target, place in re.findall(r"\]\((?!https?:|mailto:)([^)#]*)#?([^)]*)\)", prose(page))
        if place not in anchors(page.parent / target if target else page)
    ]
    assert broken == []


def test_code_blocks_can_be_read() -> None:
    """As Python, YAML and JSON; a block of JSON may hold a document a line."""
    failures = Failures()
    for page in PAGES:
        for language, block in re.findall(r"^```(python|yaml|json)\n(.*?)^```", page.read_text(), BLOCK):
            with failures.of(page.name, block):
                READERS[language](block)
    assert not failures, failures


def read_json(block: str) -> None:
    try:
        json.loads(block)
    except ValueError:
        for line in block.splitlines():
            json.loads(line)


READERS = {"python": ast.parse, "yaml": yaml.safe_load, "json": read_json}


def prose(page: Path) -> str:
    """Return a page without its code."""
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=BLOCK)


def anchors(path: Path) -> set[str]:
    """Return what a link may name in a file: a heading of a page, as the site writes it, or nothing, for all of it."""
    if path.suffix != ".md" or not path.exists():
        return {""} if path.exists() else set()
    headings = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)
    slugs = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {"", *(re.sub(r"[-\s]+", "-", slug) for slug in slugs)}


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert [page for page in DOCS.rglob("*.md") if str(page.relative_to(DOCS)) not in navigation] == []


def test_every_room_is_in_the_architecture() -> None:
    package = ROOT / "src" / "openvse"
    rooms = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    text = (DOCS / "architecture.md").read_text()
    assert sorted(room for room in rooms if not room.startswith("_") and f"`{room}`" not in text) == []
    drawn = re.findall(r'class="name">(\w+)<', (DOCS / "images" / "rooms.svg").read_text())
    beside = {"openvse_engines", "openvse_papers", "openvse_testing"}
    assert sorted(drawn) == sorted({room for room in rooms if not room.startswith("_")} | beside)


def test_the_citation_names_its_papers() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["license"] == "Apache-2.0"
    assert len(citation["references"]) == 6
    assert all(paper["title"] and paper["authors"] and paper["year"] for paper in citation["references"])


@pytest.mark.medium
def test_the_site_has_each_list_of_the_code_in_one_page(monkeypatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "figures")
    made = runpy.run_path(str(DOCS / "figures" / "lists.py"))
    texts = [page.read_text() for page in PAGES]
    assert sorted(name for text in texts for name in made["MARK"].findall(text)) == sorted(made["LISTS"])
    for name, make in made["LISTS"].items():
        rows = [line for line in make().splitlines() if line.startswith("| ")]
        assert len(rows) > 5 and not [row for row in rows if row.startswith("|  |")], name
        if name.startswith(("keys", "fields")):
            assert [row for row in rows if row.endswith("|  |")] == [], name
    (page,) = (text for text in texts if "<!-- list: terms -->" in text)
    assert "| aggregator `gpo` |" in made["on_page_markdown"](page, None, None, None)


def test_the_figures_about_scale_are_those_of_the_slopes() -> None:
    computed = runpy.run_path(str(ROOT / "benchmarks" / "scaling.py"))
    assert table("studies/scaling.md", "The figures") == computed["table"](computed["COLLECTIONS"])
