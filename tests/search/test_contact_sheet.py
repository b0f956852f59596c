import base64
import importlib
import io
import json
import os
import re
import tarfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from openvse.datasets import open_corpus
from openvse.search import Hit, contact_sheet
from openvse.search.sheets import captions_beside

VOID = {"meta", "img"}


class Page(HTMLParser):
    """The elements of a page, checked to be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def hits(tmp_path: Path) -> list[Hit]:
    found = []
    for rank, size in enumerate([(800, 600), (30, 90), (64, 64)], start=1):
        path = tmp_path / f"photo {rank}.jpg"
        Image.new("RGB", size, (10 * rank, 90, 60)).save(path)
        found.append(Hit(rank, 1.0 / rank, path.name, path))
    return found


def decoded(source: str | None) -> Image.Image:
    assert source is not None
    prefix, content = source.split(",")
    assert prefix == "data:image/webp;base64"
    return Image.open(io.BytesIO(base64.b64decode(content)))


def test_a_page_for_people_and_screen_readers(hits: list[Hit]) -> None:
    page = Page(contact_sheet({"a dog": hits, "a cat": hits[:1]}, "My photos", note="three photos"))
    assert page.all("html") == [{"lang": "en"}]
    assert {"charset": "utf-8"} in page.all("meta")
    assert [meta["name"] for meta in page.all("meta") if "name" in meta] == ["viewport", "color-scheme"]
    assert page.words.count("My photos") == 2  # title and heading
    assert "three photos" in page.words
    assert [word for word in page.words if word in ("a dog", "a cat")] == ["a dog", "a cat"]
    assert len(page.all("h1")) == 1 and len(page.all("h2")) == len(page.all("ol")) == 2
    assert [image["alt"] for image in page.all("img")] == [f"photo {n}.jpg" for n in (1, 2, 3, 1)]
    assert {"1.000", "0.500", "0.333"} <= set(page.words)


def test_thumbnails_are_small_and_keep_their_shape(hits: list[Hit]) -> None:
    page = Page(contact_sheet({"a dog": hits}))
    assert [decoded(image["src"]).size for image in page.all("img")] == [(360, 270), (30, 90), (64, 64)]


def test_the_page_needs_nothing_else(hits: list[Hit]) -> None:
    assert not re.search(r"https?://|url\(|@import|<link|<script", contact_sheet({"a dog": hits}))


def test_an_image_may_have_a_badge(hits: list[Hit]) -> None:
    page = Page(contact_sheet({"a dog": hits, "a cat": hits}, badges={"photo 2.jpg": "held out"}))
    assert page.words.count("held out") == 2


def test_everything_from_outside_is_escaped(tmp_path: Path) -> None:
    nasty = '<script>alert("1")</script>&'
    hit = Hit(1, 0.5, f'"><img src=x onerror=y>{nasty}', tmp_path / "gone.jpg")
    page = Page(contact_sheet({nasty: [hit]}, nasty, note=nasty, badges={hit.id: nasty}))
    assert page.all("script") == page.all("img") == []
    assert page.words.count(nasty) == 5  # title, heading, note, query, badge


def test_braces_are_no_placeholders(hits: list[Hit]) -> None:
    assert "{style} {0}" in Page(contact_sheet({"{style} {0}": hits}, "{sections}")).words


def test_an_image_that_is_gone_has_a_placeholder(hits: list[Hit]) -> None:
    hits[1].path.unlink()
    page = Page(contact_sheet({"a dog": hits}))
    assert len(page.all("img")) == 2
    assert {"class": "missing", "role": "img", "aria-label": "photo 2.jpg"} in page.all("span")


def test_cards_link_to_their_files_and_say_what_is_wrong(hits: list[Hit]) -> None:
    hits[1].path.unlink()
    hits[2].path.write_text("no image")
    page = Page(contact_sheet({"a dog": hits}))
    links = [link["href"] for link in page.all("a")]
    assert links == [hits[0].path.as_uri(), hits[2].path.as_uri()]
    assert links[0] is not None and links[0].startswith("file:///") and "photo%201.jpg" in links[0]


def test_long_names_are_cut_in_the_middle(hits: list[Hit]) -> None:
    name = "holiday/" * 9 + "evening walk IMG_1234.jpg"
    page = Page(contact_sheet({"a dog": [Hit(1, 0.5, name, hits[0].path)]}))
    spans = {span.get("class"): span for span in page.all("span")}
    assert spans["name"]["title"] == name
    assert "IMG_1234.jpg" in page.words and "holiday/" * 9 + "evening walk" in page.words
    css = contact_sheet({})
    assert re.search(r"\.head \{[^}]*text-overflow: ellipsis", css)
    assert re.search(r"\.tail \{[^}]*flex: none", css)


def test_captions_and_the_image_that_was_asked_with(hits: list[Hit]) -> None:
    page = Page(
        contact_sheet(
            {"like it": hits[:2], "a cat": []},
            captions={"photo 1.jpg": ["A dog <runs>.", "A second one."]},
            examples={"like it": hits[2].path},
        )
    )
    assert "A dog <runs>." in page.words and "A second one." not in page.words
    asked, first, second = page.all("img")
    assert asked["class"] == "asked" and decoded(asked["src"]).size == (64, 64)
    assert (first["alt"], second["alt"]) == ("A dog <runs>.", "photo 2.jpg")


def test_captions_lie_beside_the_images(tmp_path: Path, hits: list[Hit]) -> None:
    assert captions_beside(tmp_path) == {}
    lines = [json.dumps({"file_name": hit.id, "captions": [f"number {hit.rank}"]}) for hit in hits]
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    assert captions_beside(tmp_path) == {hit.id: [f"number {hit.rank}"] for hit in hits}
    lines.append(json.dumps({"file_name": "../elsewhere.png", "captions": ["not of this folder"]}))
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    assert captions_beside(tmp_path) == {hit.id: [f"number {hit.rank}"] for hit in hits}


def test_captions_of_packed_images_are_of_no_indexed_file(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "shard-000000.tar", "w") as archive:
        for name, content in (("a.png", png()), ("a.txt", b"a dog")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    assert len(open_corpus(tmp_path).captions) == 1
    assert captions_beside(tmp_path) == {}


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (40, 40), "red").save(file, "PNG")
    return file.getvalue()


def test_a_query_without_hits_says_so() -> None:
    page = Page(contact_sheet({"a unicorn": []}))
    assert len(page.words) > len(Page(contact_sheet({})).words) and page.all("ol") == []


def test_an_image_is_read_once(hits: list[Hit], monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("openvse.output.thumbnails")
    read: list[Path] = []
    real = module.read_poster

    def watch(path: Path, *, shorter_side: int) -> Image.Image:
        read.append(path)
        return real(path, shorter_side=shorter_side)

    monkeypatch.setattr(module, "read_poster", watch)
    contact_sheet({"a dog": hits, "a cat": hits})
    assert read == [hit.path for hit in hits]


def test_the_page_is_ascii_whatever_the_names(tmp_path: Path) -> None:
    odd = os.fsdecode(b"caf\xe9.jpg")
    text = contact_sheet({"ein Hündchen 🐶": [Hit(1, 0.5, odd, tmp_path / odd)]})
    assert text.isascii()
    assert "ein Hündchen 🐶" in Page(text).words


def css_colours(scheme: str, text: str) -> dict[str, str]:
    """Return the colour variables of the light or the dark scheme, of the shared style and then the page's own."""
    blocks = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    return dict(re.findall(r"--(\w+): (#\w{6});", "".join(blocks[scheme == "dark" :: 2])))


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(scheme: str) -> None:
    """WCAG 2 AA: at least 4.5 to 1."""
    light = {name: luminance(colour) for name, colour in css_colours(scheme, contact_sheet({})).items()}
    for ink, papers in {"ink": ("page", "card"), "quiet": ("page", "card", "mat")}.items():
        for paper in papers:
            lighter, darker = sorted((light[ink], light[paper]), reverse=True)
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (ink, paper)
