"""The check of one's own data: broken images, duplicates, leakage, captions."""

from __future__ import annotations

import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image, ImageDraw

from openvse.datasets.check import check_data
from openvse.media.near_duplicates import look_of, near_pairs


def scene(seed: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    """Draw rectangles at random; another seed draws another image."""
    random = np.random.default_rng(seed)
    image = Image.new("RGB", size, tuple(random.integers(0, 255, 3).tolist()))
    draw = ImageDraw.Draw(image)
    for _ in range(8):
        x, y = random.integers(0, size[0] - 40), random.integers(0, size[1] - 40)
        w, h = random.integers(20, 80, 2)
        draw.rectangle([int(x), int(y), int(x + w), int(y + h)], fill=tuple(random.integers(0, 255, 3).tolist()))
    return image


def write(root, *, splits=("train", "validation", "test"), count: int = 6):
    """Write scenes with a caption each, in the splits in turn."""
    root.mkdir()
    lines = []
    for number in range(count):
        scene(number).save(root / f"{number}.png")
        line = {"file_name": f"{number}.png", "text": f"scene number {number}"}
        lines.append({**line, "split": splits[number % len(splits)]})
    (root / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return root


def found(source, mark: str, **options) -> dict[str, tuple[str, ...]]:
    return {finding.text: finding.cases for finding in check_data(source, **options) if finding.mark == mark}


def test_sound_data_have_neither_faults_nor_notes(tmp_path):
    root = write(tmp_path / "x")
    assert found(root, "WRONG") == {} and found(root, "note") == {}
    assert len(found(root, "ok")) == 9


def test_splits_are_those_that_training_takes(tmp_path):
    stated = write(tmp_path / "x")
    assert "6 items, 6 captions; splits 2 / 2 / 2, in no split 0" in found(stated, "ok")
    unstated = write(tmp_path / "y", splits=("",), count=10)
    text = "10 items, 10 captions; no splits are stated, a hash of the names makes 8 / 1 / 1"
    assert text in found(unstated, "ok")


def test_broken_images_are_listed(tmp_path):
    root = write(tmp_path / "x")
    (root / "1.png").write_bytes((root / "1.png").read_bytes()[:200])
    (root / "2.png").write_bytes(b"")
    (root / "3.png").write_text("<svg/>")
    wrong = found(root, "WRONG")
    cases = wrong["3 of 6 images are broken"]
    assert cases[0].startswith("1.png: it is truncated or damaged")
    assert cases[1:] == ("2.png: the file is empty", "3.png: it is SVG: vector graphics are not read, export PNG")
    assert found(root, "WRONG", quick=True) == {}


def test_the_same_file_in_two_splits_is_a_fault_and_twice_in_one_a_note(tmp_path):
    root = write(tmp_path / "x")
    (root / "4.png").write_bytes((root / "0.png").read_bytes())  # train and validation
    (root / "5.png").write_bytes((root / "2.png").read_bytes())  # test and test
    ((text, cases),) = found(root, "WRONG").items()
    assert text.startswith("leakage: 1 pair(s) of images in two splits are the same: delete")
    assert cases == ("0.png (train) = 4.png (validation)",)
    assert found(root, "note") == {"1 pair(s) of images are the same": ("2.png = 5.png",)}


def test_near_duplicates_are_told_apart_from_the_same(tmp_path):
    root = write(tmp_path / "x")
    scene(0).resize((80, 60)).save(root / "4.jpg", quality=60)
    (root / "4.png").unlink()
    (root / "4.jpg").rename(root / "4.png")
    assert found(root, "WRONG") == {}
    assert found(root, "note") == {
        "leakage: 1 pair(s) of images in two splits are alike": ("0.png (train) ~ 4.png (validation)",)
    }


def test_captions(tmp_path):
    root = write(tmp_path / "x")
    texts = ["a dog", "A dog", "x", "a cat", "", "a dog"]
    lines = [{"file_name": f"{n}.png", "text": text} for n, text in enumerate(texts)]
    (root / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    notes = found(root, "note")
    assert notes["3 of 5 images share a caption with another one (1 captions)"] == ("3 images: a dog",)
    assert notes["1 caption(s) have fewer than 3 letters"] == ("2.png: x",)
    assert any("empty caption" in text for text in notes)


def test_a_caption_without_its_image_is_a_fault(tmp_path):
    root = write(tmp_path / "x")
    (root / "3.png").unlink()
    assert any("without a file" in text for text in found(root, "WRONG"))


def test_data_that_do_not_open_are_one_fault(tmp_path):
    (finding,) = check_data(tmp_path)
    assert finding.mark == "WRONG" and str(tmp_path) in finding.text


def test_images_in_an_archive(tmp_path):
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        for name, content in (("a", scene(0)), ("b", scene(0)), ("c", None)):
            file = io.BytesIO()
            if content is not None:
                content.save(file, "PNG")
            for ending, data in (("png", file.getvalue()), ("txt", f"scene {name}".encode())):
                info = tarfile.TarInfo(f"{name}.{ending}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    assert found(tmp_path, "WRONG")["1 of 3 images are broken"] == ("s/c.png: the file is empty",)
    assert any("the same" in text for text in [*found(tmp_path, "note"), *found(tmp_path, "WRONG")])


def test_progress(tmp_path):
    seen = []
    folder = write(tmp_path / "x")
    check_data(folder, progress=lambda *told: seen.append(told))
    assert seen == [("decoding images", number, 6) for number in range(1, 7)]
    seen.clear()
    check_data(folder, quick=True, progress=lambda *told: seen.append(told))
    assert seen[0] == ("comparing sizes of files", 6, 6)


def test_other_images_are_not_near_and_blocks_find_all(monkeypatch):
    looks = [look_of(scene(number)) for number in range(40)]
    looks += [looks[7], looks[30], looks[7]]
    expected = [(7, 40), (7, 42), (30, 41), (40, 42)]
    assert list(near_pairs(looks)) == expected
    monkeypatch.setattr("openvse.media.near_duplicates._CELLS", 300)
    assert list(near_pairs(looks)) == expected
    assert list(near_pairs(looks, lambda one, other: one == 0)) == [pair for pair in expected if not pair[0]]
    assert list(near_pairs([])) == []


def drawing(number, place=(140, 140), size=40):
    """A small sign on a large white page: the same frame, with another pictogram for each number."""
    page = Image.new("RGB", (320, 320), "white")
    sign = np.full((size, size, 3), (250, 230, 210), np.uint8)
    sign[:2] = sign[-2:] = sign[:, :2] = sign[:, -2:] = 0
    cells = np.random.default_rng(number).integers(0, 2, (4, 4)).repeat(5, axis=0).repeat(5, axis=1)
    sign[10:30, 10:30][cells == 1] = 20
    page.paste(Image.fromarray(sign), place)
    return page


def test_different_drawings_on_white_pages_are_not_near():
    assert list(near_pairs([look_of(drawing(number)) for number in range(12)])) == []
    blank = [Image.new("RGB", (60, 60), "white"), Image.new("RGB", (90, 90), "white")]
    assert list(near_pairs([look_of(each) for each in blank])) == []  # such as white icons without a ground


@pytest.mark.parametrize("show", [scene, drawing])
@pytest.mark.parametrize("change", ["jpeg", "webp", "half", "size", "cut", "darker", "brighter", "colours"])
def test_changed_copies_are_near(show, change):
    image, file = show(5), io.BytesIO()
    width, height = image.size
    match change:
        case "jpeg" | "webp":
            image.save(file, change.upper(), quality=40)
            other = Image.open(file).convert("RGB")
        case "half":
            other = image.resize((width // 2, height // 2), Image.Resampling.LANCZOS)
        case "size":
            other = image.resize((3 * width // 5, 3 * height // 5 + 1))
        case "cut":
            other = image.crop((2, 2, width - 2, height - 2))
        case "darker":
            other = image.point(lambda value: round(value * 0.95))
        case "brighter":
            other = image.point(lambda value: min(255, round(value * 1.03)))
        case _:
            other = image.quantize(64).convert("RGB")
    assert list(near_pairs([look_of(image), look_of(other)])) == [(0, 1)]


def test_plain_images_of_other_colours_are_not_near():
    looks = [look_of(Image.new("RGB", (30, 30), colour)) for colour in ("red", "blue", "white")]
    assert list(near_pairs(looks)) == []


def test_every_case_is_listed(tmp_path):
    root = write(tmp_path / "x", count=12)
    for name in ("1.png", "2.png"):
        (root / name).unlink()
    for name in ("new.png", "Other.png"):
        scene(99 + len(name)).save(root / name)
    with (root / "metadata.jsonl").open("a") as lines:
        lines.write('\n{"file_name": "other.PNG", "text": "in another case", "split": "train"}')
    assert found(root, "WRONG")["skipped 2 captioned image(s) without a file"] == (
        str(root / "1.png"),
        str(root / "2.png"),
    )
    notes = found(root, "note")
    assert notes["skipped 1 image(s) without a caption"] == ("new.png",)
    assert notes["matched 1 name(s) to files written in another way"] == (
        "'other.PNG' is written for the file 'Other.png'",
    )
