"""Reports and pages: what is written for people to read."""

import base64
import io

import pytest
from PIL import Image

from openvse.output.documents import html_page, image_uri, write_report


def test_a_report_stands_in_a_folder_that_it_makes(tmp_path) -> None:
    folder = write_report(tmp_path / "new" / "folder", "found", markdown="# Ü\n", json="{}\n")
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == {
        "found.md": "# Ü\n",
        "found.json": "{}\n",
    }


def test_a_report_replaces_the_one_before(tmp_path) -> None:
    for text in ("old", "new"):
        write_report(tmp_path, "found", markdown=text, json=text)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"new"}


def test_a_page_is_ascii_and_shows_titles_and_notes_as_they_are() -> None:
    page = html_page("<b> & Köln", "<p>é</p>", note="1 < 2", style="td { color: red }")
    assert page.isascii()
    assert "<title>&lt;b&gt; &amp; K&#246;ln</title>" in page
    assert "<p>1 &lt; 2</p>" in page and "<p>&#233;</p>" in page and "td { color: red }" in page


def test_a_page_without_a_note_has_no_empty_paragraph() -> None:
    assert "<p>" not in html_page("title", "<main></main>")


@pytest.mark.parametrize("size", [(3, 2), (1, 40)])
def test_an_image_comes_back_from_its_uri(size: tuple[int, int]) -> None:
    kind, content = image_uri(Image.new("RGB", size, "red"), quality=90).split(",")
    assert kind == "data:image/webp;base64"
    with Image.open(io.BytesIO(base64.b64decode(content))) as read:
        red, green, blue = read.convert("RGB").getpixel((0, 0))
        assert read.size == size and red > 200 and max(green, blue) < 60
