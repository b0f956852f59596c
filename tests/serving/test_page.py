"""The page in a headless Chromium: every way through it, by keyboard too, in dark and light, and on a phone."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from openvse.indexing import build_index
from openvse.model.two_tower import TwoTower
from openvse.scoring.calibration import Calibration, CalibrationData
from openvse.serving.served import Source
from openvse.serving.service import Service
from openvse.serving.settings import Settings
from openvse_papers.vqa.explain import ServedAnswerer
from tests.serving.conftest import Place, Running, write_pages
from tests.serving.test_teaching_api import service_of as teaching_service
from tests.teaching.folders import make_index

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]

TOKEN = "a token of enough characters"
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def troubles() -> list[str]:
    """Errors of the console, and requests that leave the server."""
    return []


@pytest.fixture
def open_page(browser: Browser, troubles: list[str]) -> Iterator[Open]:
    pages: list[Page] = []

    def opened(url: str, *, dark: bool = False, width: int = 1280, height: int = 800) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        page = context.new_page()
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda said: troubles.append(said.text) if said.type == "error" else None)
        base = "/".join(url.split("/")[:3])
        page.on(
            "request",
            lambda asked: troubles.append(asked.url) if not asked.url.startswith((base, "blob:", "data:")) else None,
        )
        page.goto(url)
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.context.close()


@pytest.fixture
def calibrated(model: TwoTower) -> Iterator[TwoTower]:
    data = CalibrationData("drawn", 60, 60, 60)
    knots = (-1.0, 0.0, 1.0), (-6.0, 0.0, 6.0), (1.0, 0.6, 0.0)
    model.calibration = Calibration(model.fingerprint, data, *knots)
    yield model
    model.calibration = None


@pytest.fixture
def url(
    place: Place,
    calibrated: TwoTower,
    second: TwoTower,
    answerer: ServedAnswerer,
    running: Callable[[Service], Running],
) -> str:
    settings = Settings(rerank_top=10)
    names = {"rerank": "second", "answer": "answerer"}
    return running(Service(place.index, calibrated, settings, reranker=second, answerer=answerer, names=names)).url


def loaded(page: Page, count: int) -> None:
    expect(page.locator(".card.is-loaded").nth(count - 1)).to_be_visible()


def serious(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found if each["impact"] in ("serious", "critical")]


def test_a_search_with_its_whole_life_by_keyboard(url: str, open_page: Open, troubles: list[str]) -> None:
    page = open_page(url)
    expect(page.locator("#hero-note")).to_contain_text("60")
    expect(page.locator("#q")).to_be_focused()
    assert not serious(page)
    page.keyboard.type("a red dog runs")
    page.keyboard.press("Enter")
    loaded(page, 6)
    assert page.url.endswith("?q=a+red+dog+runs")
    page.keyboard.press("/")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".card").first).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".card").nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#panel")).to_be_visible()
    name = page.locator("#panel-name").inner_text()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#panel-name")).not_to_have_text(name)
    expect(page.locator("#scores")).to_contain_text("%")
    expect(page.locator("#captions li")).to_have_count(1)
    expect(page.locator("#metadata")).to_contain_text("year")
    page.keyboard.press("l")
    expect(page.locator("#looked-note")).to_contain_text("adds")
    assert page.locator("#looked-words span").all_inner_texts() == ["a", "red", "dog", "runs"]
    expect(page.locator("#veil")).to_be_visible()
    assert not serious(page)
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_be_hidden()
    page.keyboard.press("m")
    expect(page.locator("#chip")).to_be_visible()
    assert "like=" in page.url
    page.go_back()
    expect(page.locator("#q")).to_have_value("a red dog runs")
    page.keyboard.press("Escape")
    page.locator("#help").click()
    expect(page.locator("#keys")).to_be_visible()
    assert not troubles


@pytest.mark.parametrize("key", ["ArrowDown", "ArrowRight", "ArrowUp", "ArrowLeft"])
def test_the_keys_work_after_a_search(url: str, open_page: Open, key: str) -> None:
    page = open_page(url)
    expect(page.locator("#q")).to_be_focused()
    page.keyboard.type("a red dog runs")
    page.keyboard.press("Enter")
    loaded(page, 6)
    page.keyboard.press(key)
    expect(page.locator(".card").first).to_be_focused()
    page.keyboard.press("l")
    expect(page.locator("#looked-note")).to_contain_text("adds")
    page.keyboard.press("l")
    expect(page.locator("#looked")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(page.locator("#panel")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(page.locator("#panel")).to_be_visible()
    page.keyboard.press("m")
    loaded(page, 6)
    assert "like=" in page.url and page.evaluate("scrollY") == 0
    page.keyboard.press(key)
    expect(page.locator(".card").first).to_be_focused()
    page.go_back()
    loaded(page, 6)
    page.keyboard.press(key)
    expect(page.locator(".card").first).to_be_focused()
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()


def test_all_images_come_as_one_scrolls(url: str, open_page: Open) -> None:
    page = open_page(f"{url}/?q=grass")
    loaded(page, 6)
    page.locator(".card").nth(47).scroll_into_view_if_needed()
    expect(page.locator(".card")).to_have_count(60)


def test_filters_what_to_avoid_and_the_lowest_score(url: str, open_page: Open, troubles: list[str]) -> None:
    page = open_page(f"{url}/?q=grass")
    loaded(page, 6)
    page.locator("#add-filter").click()
    page.locator("#filter-field").select_option("year")
    page.locator("#filter-value").fill("2003")
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("12")
    page.locator("#add-avoid").click()
    page.locator("#avoid-value").fill("birds")
    page.keyboard.press("Enter")
    expect(page.locator("#chips li")).to_have_count(2)
    page.locator("#chips button").last.click()
    expect(page.locator("#chips li")).to_have_count(1)
    expect(page.locator(".card")).to_have_count(12)
    page.locator("#least").focus()
    for _ in range(40):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#least-value")).to_contain_text(re.compile("likely|possible"))
    expect(page.locator(".card")).not_to_have_count(12)
    assert not serious(page)
    page.goto(f"{url}/?q=grass&where=year+%3E+3000")
    expect(page.locator("#nothing")).to_be_visible()
    page.locator("#loosen").click()
    expect(page.locator(".card")).to_have_count(48)
    assert not troubles


def test_the_second_model_is_seen_to_move_hits(url: str, open_page: Open, troubles: list[str]) -> None:
    page = open_page(f"{url}/?q=grass")
    loaded(page, 6)
    page.locator(".switch").click()
    expect(page.locator(".move")).to_have_count(10)
    expect(page.locator("#status")).to_contain_text("second")
    page.locator(".card").nth(1).click()
    expect(page.locator("#scores")).to_contain_text("→ 2")
    assert not troubles


def test_a_slow_second_model_is_told(url: str, open_page: Open) -> None:
    page = open_page(f"{url}/?q=grass")
    loaded(page, 6)
    page.route("**/api/search**rerank=true**", lambda route: None)
    page.locator(".switch").click()
    expect(page.locator("#status")).to_contain_text("second")
    page.wait_for_timeout(2000)  # longer than a reply may take before the page says "Still searching"
    expect(page.locator("#status")).to_contain_text("second")
    expect(page.locator(".card")).to_have_count(48)


def test_the_mouse_takes_the_panel_from_image_to_image(
    own_place: Place, model: TwoTower, running: Callable[[Service], Running], open_page: Open, troubles: list[str]
) -> None:
    frames = [Image.new("RGB", (64, 48), colour) for colour in ("red", "green", "blue")]
    frames[0].save(own_place.photos / "moving.gif", save_all=True, append_images=frames[1:], duration=80)
    build_index(model, own_place.photos, own_place.index)
    page = open_page(f"{running(Service(own_place.index, model, Settings())).url}/?q=grass")
    loaded(page, 9)
    for number in (2, 0, 5):
        page.locator(".card").nth(number).click()
        expect(page.locator("#panel")).to_be_visible()
        expect(page.locator("#scores")).to_contain_text(str(number + 1))
        expect(page.locator("#panel-image")).to_have_attribute("src", re.compile("large=true|/file"))
    page.locator(".card").nth(5).click()
    expect(page.locator("#panel")).to_be_hidden()
    page.locator(".card", has_text="moving.gif").click()
    expect(page.locator("#panel-image")).to_have_attribute("src", re.compile("/file"))
    assert not troubles


def test_a_question_is_answered_with_where_it_came_from(url: str, open_page: Open, troubles: list[str]) -> None:
    page = open_page(f"{url}/?q=grass")
    loaded(page, 6)
    page.locator(".card").first.click()
    page.locator("#question").fill("what colour is the dog")
    page.keyboard.press("Enter")
    expect(page.locator(".answer")).to_have_count(5)
    expect(page.locator("#looked-note")).to_contain_text("attention")
    expect(page.locator("#veil")).to_be_visible()
    image, veil = (page.locator(place).bounding_box() for place in ("#panel-image", "#veil"))
    # The map lies on the image, whatever its shape.
    assert image == veil == page.locator("#stage").bounding_box()
    assert not serious(page) and not troubles


def test_an_image_is_chosen_pasted_and_dropped(url: str, place: Place, open_page: Open, troubles: list[str]) -> None:
    page = open_page(url)
    expect(page.locator(".examples button").first).to_be_visible()
    page.set_input_files("#file", place.photos / "001.jpg")
    loaded(page, 6)
    expect(page.locator(".card").first).to_have_attribute("aria-label", "1. the green cat sleeps, score 1.000")
    page.locator("#q").fill("grass")
    page.keyboard.press("Enter")
    expect(page.locator("#mix")).to_be_visible()
    page.locator("#weight").fill("0.2")
    page.wait_for_url("**weight=0.2**")
    loaded(page, 6)
    mixed = page.locator(".card").first.get_attribute("aria-label")
    page.go_back()
    page.go_back()
    expect(page.locator("#q")).to_have_value("")
    expect(page.locator(".card").first).to_have_attribute("aria-label", "1. the green cat sleeps, score 1.000")
    page.go_forward()
    page.go_forward()
    expect(page.locator(".card").first).to_have_attribute("aria-label", str(mixed))
    expect(page.locator("#weight")).to_have_value("0.2")
    page.locator("#chip-remove").click()
    expect(page.locator("#mix")).to_be_hidden()
    for kind, words in (("drop", "dataTransfer"), ("paste", "clipboardData")):
        page.goto(url)
        expect(page.locator(".examples button").first).to_be_visible()
        script = """async ([kind, where]) => {
          const bytes = await (await fetch('/api/items/1/thumbnail')).blob();
          const held = new DataTransfer();
          held.items.add(new File([bytes], 'x.webp', { type: 'image/webp' }));
          const event = kind === 'drop' ? new DragEvent(kind, { dataTransfer: held, cancelable: true, bubbles: true })
            : new ClipboardEvent(kind, { clipboardData: held, cancelable: true, bubbles: true });
          document.body.dispatchEvent(event);
        }"""
        page.evaluate(script, [kind, words])
        loaded(page, 6)
        expect(page.locator("#chip")).to_be_visible()
    assert not troubles


def test_an_image_that_the_browser_cannot_show_has_a_preview(
    url: str, place: Place, open_page: Open, tmp_path: Path, troubles: list[str]
) -> None:
    with Image.open(place.photos / "001.jpg") as photo:
        photo.resize((1200, 900)).save(tmp_path / "photo.tiff")  # Chromium shows TIFF as little as HEIC
    page = open_page(url)
    expect(page.locator(".examples button").first).to_be_visible()
    page.set_input_files("#file", tmp_path / "photo.tiff")
    loaded(page, 6)
    seen = page.locator("#chip-image")
    expect(seen).to_be_visible()
    assert seen.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [800, 600]
    page.reload()
    loaded(page, 6)
    expect(seen).to_be_visible()
    assert not troubles
    page.goto(f"{url}/?image={'0' * 32}")
    expect(page.locator("#trouble")).to_contain_text("send it again")
    expect(seen).to_be_hidden()
    (tmp_path / "photo.heic").write_bytes(b"no image")
    page.set_input_files("#file", tmp_path / "photo.heic")
    expect(page.locator("#trouble")).to_contain_text("not an image")


def test_regions_are_numbered_where_they_overlap(url: str, open_page: Open, troubles: list[str]) -> None:
    boxes = [[0.1, 0.1, 0.6, 0.9], [0.12, 0.1, 0.62, 0.9], [0.4, 0.3, 0.9, 0.95], [0, 0, 1, 1], [0.7, 0, 1, 0.3]]
    looked = {"of": "score", "boxes": boxes, "shares": [0.3, 0.2, 0.1, -0.1, 0.05], "tiled": False}
    told = {**looked, "words": ["grass"], "word_shares": [0.5], "view": 1, "views": 1}
    page = open_page(f"{url}/?q=grass")
    page.route("**/looked**", lambda route: route.fulfill(json=told))
    loaded(page, 6)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("l")
    expect(page.locator("#looked-note")).to_contain_text("1 (55 %), 2 (18 %), 3 (9 %)")
    assert page.locator("#outlines text").all_text_contents() == ["3", "2", "1"]
    stage = page.locator("#stage").bounding_box()
    best = page.locator("#outlines .f1").bounding_box()
    assert stage and best
    assert (best["x"] - stage["x"]) / stage["width"] == pytest.approx(0.1, abs=0.02)
    assert best["width"] / stage["width"] == pytest.approx(0.5, abs=0.03)
    assert not serious(page) and not troubles


def test_a_hit_shows_the_page_of_its_text(
    own_place: Place, model: TwoTower, running: Callable[[Service], Running], open_page: Open, troubles: list[str]
) -> None:
    write_pages(own_place, model)
    page = open_page(f"{running(Service(own_place.index, model, Settings())).url}/?q=beach bar")
    loaded(page, 9)
    expect(page.locator(".said").first).to_have_text("text: page 2: Beach bar")
    page.locator(".card").first.click()
    expect(page.locator("#panel-image")).to_have_attribute("src", re.compile("page=2"))
    expect(page.locator("#text")).to_have_text("page 2: Beach bar")
    wide, high = page.locator("#stage").evaluate("stage => [stage.clientWidth, stage.clientHeight]")
    assert wide / high == pytest.approx(2, rel=0.05) and page.locator("#marks polygon").count() == 1
    expect(page.locator("#look")).to_be_hidden()
    assert not troubles


def test_cards_show_whole_images_with_titles(
    own_place: Place, model: TwoTower, running: Callable[[Service], Running], open_page: Open
) -> None:
    Image.new("RGB", (60, 240), "red").save(own_place.photos / "tall.png")
    said = {"file_name": "tall.png", "title": "A tall tower", "tags": ["Rome", "stone"], "public": True}
    (own_place.photos / "metadata.jsonl").write_text(json.dumps(said) + "\n")
    build_index(model, own_place.photos, own_place.index)
    page = open_page(f"{running(Service(own_place.index, model, Settings())).url}/?q=grass")
    loaded(page, 9)
    card = page.locator(".card", has_text="A tall tower")
    assert card.locator("img").evaluate("image => getComputedStyle(image).objectFit") == "contain"
    card.click()
    expect(page.locator("#panel-name")).to_have_text("A tall tower")
    expect(page.locator("#panel-image")).to_have_attribute("src", re.compile("large=true"))
    wide, high = page.locator("#stage").evaluate("stage => [stage.clientWidth, stage.clientHeight]")
    assert high / wide == pytest.approx(4, rel=0.05)
    for field, value, count in (("tags", "stone", 1), ("public", "true", 1), ("tags", "Paris", 0)):
        page.goto(page.url.partition("&")[0])
        loaded(page, 9)
        page.locator("#add-filter").click()
        page.locator("#filter-field").select_option(field)
        page.locator("#filter-value").fill(value)
        page.keyboard.press("Enter")
        expect(page.locator(".card.is-loaded")).to_have_count(count)


def test_errors_and_slow_replies_are_told(url: str, open_page: Open) -> None:
    page = open_page(f"{url}/?q=grass&where=nonsense")
    expect(page.locator("#trouble")).to_contain_text("nonsense")
    assert not serious(page)
    page.route("**/api/search**", lambda route: None)
    page.goto(f"{url}/?q=grass")
    expect(page.locator("#status")).to_contain_text("Still searching")
    expect(page.locator(".ghost").first).to_be_visible()
    page.unroute_all(behavior="ignoreErrors")
    page.route("**/api/search**", lambda route: route.abort())
    page.goto(f"{url}/?q=grass")
    expect(page.locator("#trouble")).to_be_visible()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_on_a_phone(url: str, open_page: Open, troubles: list[str], dark: bool) -> None:
    page = open_page(f"{url}/?q=grass", dark=dark, width=360, height=740)
    loaded(page, 4)
    wide = "document.documentElement.scrollWidth > innerWidth"
    assert not page.evaluate(wide) and not serious(page)
    page.locator(".card").first.click()
    expect(page.locator("#close")).to_be_focused()
    assert not page.evaluate(wide) and not serious(page)
    page.locator("#close").click()
    expect(page.locator(".card").first).to_be_focused()
    page.locator(".card").nth(1).click()
    expect(page.locator("#close")).to_be_focused()
    page.go_back()  # as on a phone, this closes what covers the page
    expect(page.locator("#panel")).to_be_hidden()
    expect(page.locator("#q")).to_have_value("grass")
    expect(page.locator(".card")).to_have_count(48)
    page.locator(".card").first.click()
    page.locator("#similar").click()
    page.wait_for_url("**like=**")
    loaded(page, 4)
    expect(page.locator("#panel")).to_be_hidden()
    assert not troubles


def test_the_choice_of_dark_stays(url: str, open_page: Open) -> None:
    page = open_page(url)
    expect(page.locator(".examples button").first).to_be_visible()
    page.locator("#theme").click()
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.locator(".examples button").first).to_be_visible()
    assert not serious(page)


def test_a_token_is_asked_for(
    place: Place, model: TwoTower, running: Callable[[Service], Running], open_page: Open
) -> None:
    server = running(Service(place.index, model, Settings(token=TOKEN)))
    page = open_page(f"{server.url}/?q=grass")
    expect(page.locator("#login")).to_be_visible()
    assert not serious(page)
    page.locator("#token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#login-error")).to_contain_text("wrong")
    page.locator("#token").fill(TOKEN)
    page.keyboard.press("Enter")
    loaded(page, 6)


def test_hits_are_judged_and_what_was_learned_is_told(
    own_place: Place, calibrated: TwoTower, running: Callable[[Service], Running], open_page: Open, troubles: list[str]
) -> None:
    server = running(Service(Source(own_place.index, judged=True), calibrated, Settings()))
    page = open_page(f"{server.url}/?q=a+red+dog+runs", width=390)
    loaded(page, 3)
    names = page.locator(".card .name").all_inner_texts()
    page.locator(".judge button", has_text="Does not fit").first.click()
    expect(page.locator("#learned p")).to_contain_text("1 judgement of all searches moved the probabilities")
    expect(page.locator(".card .name").first).to_have_text(names[1])
    expect(page.locator(".card")).to_have_count(7)
    page.locator(".card").nth(2).focus()
    page.keyboard.press("f")
    expect(page.locator(".card .name").first).to_have_text(names[3])
    expect(page.locator(".judge button").first).to_have_attribute("aria-pressed", "true")
    assert not serious(page)
    for left in (1, 0):
        page.locator("#learned button").first.click()
        expect(page.locator("#learned button")).to_have_count(left)
    expect(page.locator(".card")).to_have_count(8)
    assert page.locator(".card .name").all_inner_texts() == names
    assert not troubles


def test_the_page_is_small(url: str, open_page: Open) -> None:
    page = open_page(url)
    expect(page.locator(".examples button").first).to_be_visible()
    sizes = page.evaluate(
        "performance.getEntries().filter(e => e.transferSize !== undefined).map(e => [e.name, e.transferSize])"
    )
    assert len(sizes) <= 14 and sum(size for _, size in sizes) < 40_000, sizes


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 390)], ids=["light", "dark on a phone"])
def test_captions_are_typed_by_keyboard_alone(
    tmp_path: Path, running: Callable[[Service], Running], open_page: Open, troubles: list[str], dark: bool, width: int
) -> None:
    url, file = (
        running(teaching_service(tmp_path, make_index(tmp_path, 24, 19))).url,
        tmp_path / "photos/metadata.jsonl",
    )
    page = open_page(f"{url}/teach", dark=dark, width=width)
    line, photo, status = page.locator("#line"), page.locator("#photo"), page.locator("#status")
    expect(line).to_be_focused()
    expect(page.locator("#progress")).to_contain_text("19 of 24 have captions. From 20 on")
    first = photo.get_attribute("alt")
    page.keyboard.press("ArrowDown")
    expect(photo).not_to_have_attribute("alt", str(first))
    page.keyboard.press("ArrowUp")
    expect(photo).to_have_attribute("alt", str(first))
    word = page.locator("#words li button").first.inner_text()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(line).to_have_value(word)
    page.keyboard.type(" runs")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("grass")
    page.keyboard.press("Enter")
    expect(status).to_have_text(f"Saved: {word} runs / grass")
    expect(page.locator("#progress")).to_contain_text("20 of 24 have captions. The search has learned")
    said = json.loads(file.read_text().splitlines()[-1])
    assert said["captions"] == [f"{word} runs", "grass"] and said["file_name"] in str(first)
    page.locator("#q").fill("grass")
    page.keyboard.press("Enter")
    expect(page.locator("#found img")).to_have_count(12)
    line.focus()
    page.keyboard.press("Control+z")
    expect(photo).to_have_attribute("alt", str(first))
    expect(page.locator("#progress")).to_contain_text("19 of 24")
    assert len(file.read_text().splitlines()) == 19
    assert not serious(page) and not troubles
    assert page.evaluate("document.documentElement.scrollWidth") <= width
