"""``openvse compare`` of the shared run alone: the page, the table, and what goes wrong."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from album import Page, digest, write_recipe

from openvse.datasets.check import check_data
from openvse.search import Hit, contact_sheet
from tests.naming import names

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def page(trained: Path, works, tmp_path_factory) -> Path:
    """Write the report of the shared run."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    result = works("compare", trained / "run", "--html", path, "--examples", 3)
    assert f"written: {path}" in result.stderr.replace("\n", "") and "RSUM" in result.stdout
    return path


def test_without_figures_only_a_page_is_written(trained: Path, refused) -> None:
    assert "--html" in refused("compare", trained / "run", "--no-test")


def test_the_page_tells_of_data_training_figures_and_queries(page: Path, trained: Path) -> None:
    found = Page(page)
    for text in (
        "openvse compare: run",
        "album: 12 train, 4 validation, 4 test images",
        "none found among those that could be checked",
        "below a figure: its 95% interval",
        "chance",
        f"openvse train {trained / 'run' / 'recipe.yaml'} --out AGAIN",
        "loss",
        "RSUM (validation)",
        "Learned pooling",
        "Texts asking for images",
        "Images asking for texts",
        "The whole recipe",
        "validation not counted",
    ):
        assert text in found.text, text
    assert re.search(r"Started\d{4}-\d\d-\d\d", found.text)
    assert "CPU, 1 thread" in found.text
    assert "leaky" not in [attributes.get("class") for _, attributes in found.tags]


def test_the_page_needs_no_network_and_no_script(page: Path) -> None:
    Page(page).check_needs_nothing()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_asks_nobody_and_a_phone_is_wide_enough(page: Path, scheme: str) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    asked: list[str] = []
    said: list[str] = []
    with sync_playwright() as player:
        started = player.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = started.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme).new_page()
        tab.on("request", lambda request: asked.append(request.url))
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.goto(page.as_uri())
        # Such as the path of an image that is missing.
        tab.evaluate("document.querySelector('ul.notes').append('/images/' + '1234567890'.repeat(9))")
        width = tab.evaluate("document.documentElement.scrollWidth")
        broken = tab.evaluate("[...document.images].filter(image => !image.naturalWidth).length")
        colours = tab.evaluate(
            "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
        )
        many = [Hit(rank, -0.379, "a.png", page, probability=0.02, fit="unlikely") for rank in (9, 10, 100)]
        tab.set_viewport_size({"width": 1100, "height": 800})
        tab.set_content(contact_sheet({"a dog": many}))
        ends = tab.evaluate(
            "[...document.querySelectorAll('figcaption')].map(each => ['.rank', '.score', '.fit'].flatMap("
            "name => { const box = each.querySelector(name).getBoundingClientRect();"
            " return [box.left, box.right, box.bottom]; }))"
        )
        started.close()
    for _, rank_ends, _, score_begins, _, bottom, _, _, fit_bottom in ends:  # side by side, in one line
        assert score_begins >= rank_ends + 4 and abs(fit_bottom - bottom) < 4
    assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()]
    assert said == [] and broken == 0
    assert width == 390
    ink, paper = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
    assert ink + 400 < paper if scheme == "light" else paper + 400 < ink


def test_figures_are_those_of_evaluate(trained: Path, result_of) -> None:
    result = result_of("compare", trained / "run")
    ((run,),) = [row["runs"] for row in result["rows"]]
    words = "--on", trained / "album", "--features", trained / "run" / "features"
    report, again = (
        result_of("evaluate", place, *words)["report"] for place in (trained / "run" / "best", trained / "run")
    )
    assert report == again
    assert (run["metrics"], run["model"]) == (report["metrics"], report["model"])
    assert run["intervals"] == report["intervals"]
    assert run["beside"] == {"hubs out": report["hubs_out"]["metrics"], "chance": report["chance"]}
    assert result["contrasts"] == [] and result["rows"][0]["mean"] == report["metrics"]


def test_rows_in_markdown_and_latex(trained: Path, invoke) -> None:
    table = invoke("compare", trained / "run", "--format", "markdown").stdout
    assert table.startswith("|  | RSUM | i2t R@1 |") and "| **run** | **" in table
    assert "- on album/test: 4 images, " in table
    rows = invoke("compare", trained / "run", "--format", "latex").stdout
    assert r"\toprule" in rows and r"{\scriptsize " in rows and r"95\% interval" in rows
    header, first = (line for line in rows.splitlines() if line.startswith((" & RSUM", "run &")))
    assert header.count("&") == first.count("&")


def test_several_runs_share_charts(trained: Path, works, tmp_path: Path) -> None:
    shutil.copytree(trained / "run", tmp_path / "other", ignore=shutil.ignore_patterns("last.pt"))
    out = tmp_path / "both.html"
    words = (trained / "run", tmp_path / "other", "--html", out, "--examples", 0, "--apart")
    for more in ((), ("--no-test", "--overwrite")):
        works("compare", *words, *more)
        found = Page(out)
        assert ("B against A" in found.text) is not bool(more)
        loss = found.source.partition("<figcaption>loss</figcaption>")[2].partition("</svg>")[0]
        assert "#0072b2" in loss and "#d55e00" in loss  # a line of its own colour for each run


def test_the_page_says_what_a_run_changed_of_its_start(page: Path, trained: Path, works, tmp_path: Path) -> None:
    run = shutil.copytree(trained / "run", tmp_path / "run", ignore=shutil.ignore_patterns("last.pt"))

    def told() -> str:
        words = ("--no-test", "--overwrite", "--examples", 0, "--html", run / "report.html")
        works("compare", run, *words)
        return Page(run / "report.html").text

    assert not any(words in Page(page).text for words in ("Before and after", "Began from"))
    change = {"before": 40.0, "after": 52.5, "difference": 12.5, "interval": [-1.25, 20.0]}
    start = {"name": "<mine>", "fingerprint": "abc"}
    (run / "before_after.json").write_text(json.dumps({"start": start, "best_epoch": 1, "metrics": {"rsum": change}}))
    found = told()
    assert "Before and after, on validation" in found and "+12.5" in found and "-1.2 to +20.0" in found
    assert "<mine>" in found and "Began from" in found
    with (run / "recipe.yaml").open("a") as file:
        file.write("start: runs/mine/best\n")
    assert "before: runs/mine/best" in told()
    # A run that has not finished has only what its model remembers; a damaged file is not read.
    (run / "before_after.json").write_text("{")
    config = json.loads((run / "best" / "config.json").read_text())
    config["provenance"]["start"] = {**start, "changes": {}}
    (run / "best" / "config.json").write_text(json.dumps(config))
    assert "Before and after" not in told() and "Began from" in told()


def test_a_moved_store_gets_one_line(trained: Path, refused, tmp_path: Path) -> None:
    run = shutil.copytree(trained / "run", tmp_path / "run", ignore=shutil.ignore_patterns("last.pt"))
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text.replace("features: auto", "features: gone/features"))
    assert names(refused("compare", run), "gone/features", "--features")


def test_training_images_in_the_test_are_red(trained: Path, works, tmp_path: Path) -> None:
    result = works("compare", trained / "run", "--split", "train", "--html", tmp_path / "page.html")
    assert names(result.stderr.replace("\n", " "), "leakage: run", 12, 12)
    found = Page(tmp_path / "page.html")
    classes = [attributes.get("class") for _, attributes in found.tags]
    assert classes.count("leak") == classes.count("leaky") == 1
    assert names(found.text, "leakage: run", 12, 12)


def test_equal_files_of_two_splits_are_told_as_data_check_tells_them(
    trained: Path, invoke, works, tmp_path: Path
) -> None:
    album = shutil.copytree(trained / "album", tmp_path / "album")
    shutil.copyfile(album / "00.png", album / "04.png")
    line = "leakage: 1 pair(s) of images in two splits are the same"
    (wrong,) = [found for found in check_data(album, quick=True) if not found.ok]
    assert wrong.text.startswith(line) and wrong.cases == ("00.png (train) = 04.png (test)",)
    best = trained / "run" / "best"
    evaluated = invoke("evaluate", best, "--on", album, "--json")
    problems = json.loads(evaluated.stdout)["result"]["report"]["problems"]
    assert sum(problem.startswith(line) for problem in problems) == 1
    assert line in evaluated.stderr.replace("\n", " ")
    works("compare", trained / "run", "--on", album, "--html", tmp_path / "page.html")
    assert line in Page(tmp_path / "page.html").text and "none found" not in Page(tmp_path / "page.html").text
    recipe = write_recipe(tmp_path / "tiny.yaml", album)
    assert line in invoke("train", recipe, "--out", tmp_path / "run").stderr.replace("\n", " ")


def test_without_a_test_set_the_training_is_told(trained: Path, works, tmp_path: Path) -> None:
    works("compare", trained / "run", "--no-test", "--html", tmp_path / "page.html")
    found = Page(tmp_path / "page.html")
    assert "RSUM (validation)" in found.text and "Figures" not in found.text


def test_nothing_is_overwritten(trained: Path, refused, page: Path, works) -> None:
    before = digest(page.parent)
    words = ("compare", trained / "run", "--no-test", "--html", page)
    assert str(page) in refused(*words)
    assert digest(page.parent) == before
    for more in ((), ("--overwrite",)):
        works(*words[:-1], page.parent / "other.html", *more)


def test_bad_runs_get_one_line(trained: Path, refused, tmp_path: Path) -> None:
    def copy(name: str) -> Path:
        return shutil.copytree(trained / "run", tmp_path / name, ignore=shutil.ignore_patterns("last.pt", "features"))

    run = trained / "run"
    silent = copy("silent")
    (silent / "metrics.jsonl").unlink()
    assert names(refused("compare", silent), "silent", "metrics.jsonl")
    begun = copy("begun")
    shutil.rmtree(begun / "best")
    assert "best/config.json" in refused("compare", begun)
    half = copy("half")
    (half / "best" / "model.safetensors").unlink()
    assert "model.safetensors" in refused("compare", half)
    broken = copy("broken")
    (broken / "recipe.yaml").write_text("a: [")
    assert "recipe.yaml" in refused("compare", broken)
    assert names(refused("compare", run, run), run.name)
    alone = shutil.copytree(run / "best", tmp_path / "alone")
    assert names(refused("compare", alone), "alone", "--on DATA")
    assert str(tmp_path) in refused("compare", run, "--html", tmp_path)
    assert "--protocol" in refused("compare", run, copy("third"), "--apart", "--protocol", "coco_1k")
    assert not list(tmp_path.rglob("*.html"))


def test_another_data_sets_images_get_one_line(trained: Path, refused, tmp_path: Path) -> None:
    shutil.copytree(trained / "album", tmp_path / "album")
    for number, path in enumerate(sorted((tmp_path / "album").glob("*.png"))):
        path.rename(path.with_name(f"other_{number}.png"))
    lines = (trained / "album" / "metadata.jsonl").read_text().splitlines()
    entries = [{**json.loads(line), "file_name": f"other_{n}.png"} for n, line in enumerate(lines)]
    (tmp_path / "album" / "metadata.jsonl").write_text("\n".join(map(json.dumps, entries)) + "\n")
    words = ("--on", tmp_path / "album", "--features", trained / "run" / "features")
    line = refused("compare", trained / "run", *words, "--html", tmp_path / "page.html")
    assert names(line, 4, "album/test")
    assert not (tmp_path / "page.html").exists()
