"""How well the text in pictures is read and found: drawn pictures whose words are known, and photographs.

python studies/text_in_pictures.py drawn [--count 120] [--seed 2] [--photos FOLDER] [--fonts FOLDER]
python studies/text_in_pictures.py photographs MODEL flickr8k:FOLDER [--features STORE] [--count 300]

``drawn`` draws receipts, screenshots, signs over photographs, pages turned by 90 and by 8 degrees, small print, and
lines in four scripts, reads them, and counts the words that were read by the confidence of their lines. Each picture
has one word that no other has, which is searched for. The pictures are embedded as random vectors, so that similarity
says nothing. The least confidence was chosen with ``--seed 1 --count 24``.

``photographs`` reads photographs of the test split, one thread, and compares the recall of their captions with and
without the text in the same index.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import openvse
from openvse.datasets import open_corpus
from openvse.indexing import Index, build_index
from openvse.indexing.readings import read_texts
from openvse.indexing.words import words_in
from openvse.media.images import read_image
from openvse.media.text_reading import LEAST_CONFIDENCE, RapidReader, TextLine, lines_in, stored_lines
from openvse.output.table import Table
from openvse.runtime.arrays import ArraySet
from openvse.search import Page, SearchEngine

WORDS = [
    "bread",
    "milk",
    "butter",
    "cheese",
    "apple",
    "orange",
    "paper",
    "ticket",
    "window",
    "garden",
    "station",
    "market",
    "kitchen",
    "letter",
    "number",
    "total",
    "change",
    "payment",
    "invoice",
    "account",
    "order",
    "street",
    "summer",
    "winter",
    "morning",
    "evening",
    "price",
    "weight",
    "colour",
    "table",
    "chair",
    "music",
    "travel",
    "passport",
    "customer",
    "service",
    "delivery",
    "address",
    "message",
    "settings",
    "battery",
    "network",
    "account",
    "search",
    "contact",
    "calendar",
]
SCRIPTS = {
    "Latin": ["Größe", "Äpfel", "Führung", "Çörek", "niño", "garçon", "Łódź", "smørbrød"],
    "Han": ["発票", "合計", "電話", "地址", "北京", "上海", "東京", "新聞"],
    "Hiragana": ["ありがとう", "こんにちは", "おはよう", "さくら", "ひらがな"],
    "Katakana": ["コーヒー", "ホテル", "タクシー", "レストラン", "カメラ"],
}
KINDS = ("receipt", "light screen", "dark screen", "sign", "turned 90", "turned 8", "small print", "script")
SHARES = (20, 15, 15, 20, 15, 15, 10, 10)
SYLLABLES = [
    "ba",
    "be",
    "bo",
    "da",
    "de",
    "do",
    "fa",
    "fe",
    "fo",
    "ga",
    "go",
    "ka",
    "ke",
    "ko",
    "la",
    "le",
    "lo",
    "ma",
    "me",
    "mo",
    "na",
    "ne",
    "no",
    "pa",
    "pe",
    "po",
    "ra",
    "re",
    "ro",
    "sa",
    "se",
    "so",
    "ta",
    "te",
    "to",
]


def font_of(folder: Path, size: int, *, cjk: bool = False) -> Any:
    """Return a font of a folder: DejaVu, or one of Noto's for Chinese and Japanese."""
    pattern = "*CJK-Regular*" if cjk else "DejaVuSans.ttf"
    found = sorted(folder.rglob(pattern)) or sorted(Path("/usr/share/fonts").rglob(pattern))
    return ImageFont.truetype(str(found[0]), size)


def drawn(number: int, kind: str, rare: str, photos: Sequence[Path], fonts: Path) -> tuple[Image.Image, str]:
    """Return a picture with its rare word, and the text that is in it."""
    draw = np.random.default_rng([number, KINDS.index(kind)])
    some = [str(each) for each in draw.choice(WORDS, 12)]
    some[int(draw.integers(12))] = rare
    lines = [" ".join(some[start : start + 3]) for start in range(0, 12, 3)]
    size, colours, cjk = (520, 420), ("white", "black"), False
    font_px = 26
    match kind:
        case "receipt":
            lines = [f"{word}  {draw.integers(1, 99)},{draw.integers(10, 99)}" for word in some]
            size = (380, 620)
        case "dark screen":
            colours = ("#1c1f22", "#e6e6e6")
        case "light screen":
            colours = ("#f4f6f8", "#30343a")
        case "small print":
            font_px = 13
        case "sign":
            lines, font_px = [some[0], rare], 30
        case "script":
            script = [*SCRIPTS][number % 4]
            cjk = script != "Latin"
            lines = [*map(str, draw.choice(SCRIPTS[script], 4)), rare]
    image = Image.new("RGB", size, colours[0])
    if kind == "sign" and photos:
        image = read_image(photos[number % len(photos)])
        width, height = image.size
        ImageDraw.Draw(image).rectangle((20, height // 3, width - 20, height // 3 + 120), fill="#12408a")
        colours = ("", "white")
    pen, font, top = ImageDraw.Draw(image), font_of(fonts, font_px, cjk=cjk), 20
    if kind == "sign":
        top = image.size[1] // 3 + 10
    for line in lines:
        pen.text((30, top), line, colours[1], font)
        top += int(1.8 * font_px)
    if kind == "turned 90":
        image = image.transpose(Image.Transpose.ROTATE_90 if number % 2 else Image.Transpose.ROTATE_270)
    if kind == "turned 8":
        image = image.rotate(8, expand=True, fillcolor="white", resample=Image.Resampling.BICUBIC)
    return image, "\n".join(lines)


class Eyeless:
    """Embeds anything as a random vector, so that only words find something."""

    fingerprint, kind, indexable, reads_videos = "eyeless", "inner", True, False

    def read_image(self, image: Any) -> Any:
        return image

    def encode_pixels(self, images: Sequence[Any]) -> ArraySet:
        return ArraySet.full(self._random(len(images)))

    def encode_text(self, texts: Sequence[str], batch_size: int = 64) -> ArraySet:
        return ArraySet.full(self._random(len(texts)))

    def _random(self, count: int) -> np.ndarray:
        vectors = np.random.default_rng(count).normal(size=(count, 1, 16)).astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


class Sure:
    """The reader, which gives every line, and keeps what it read and how long it took."""

    name = "rapidocr"

    def __init__(self) -> None:
        self._reader = RapidReader(1)
        self._reader._engine.text_score = 0.0
        self.read_lines: list[list[TextLine]] = []
        self.seconds: list[float] = []

    def read(self, image: Image.Image) -> list[TextLine]:
        began = time.process_time()
        lines = self._reader.read(image)
        self.seconds.append(time.process_time() - began)
        self.read_lines.append(lines)
        return lines


def words_of(text: str) -> Counter[str]:
    """Return the words of a text as the index has them."""
    return Counter(words_in(stored_lines([TextLine(line, 1.0, ()) for line in text.split("\n")])).split())


def measure_drawn(options: argparse.Namespace) -> None:
    """Draw, read, count and search."""
    photos = sorted(options.photos.glob("*.jpg"))[: options.count] if options.photos else []
    draw = np.random.default_rng(options.seed)
    kinds = [kind for kind, share in zip(KINDS, SHARES, strict=True) for _ in range(share * options.count // 120)]
    with tempfile.TemporaryDirectory() as place:
        folder, texts, rare_words = Path(place, "photos"), [], []
        folder.mkdir()
        for number, kind in enumerate(kinds):
            rare = "".join(map(str, draw.choice(SYLLABLES, 4)))
            image, text = drawn(1000 * options.seed + number, kind, rare, photos, options.fonts)
            image.save(folder / f"{number:03}.png")
            texts.append(text)
            rare_words.append(rare)
        reader, model = Sure(), Eyeless()
        build_index(model, folder, Path(place, "index"))
        read_texts(Path(place, "index"), reader)
        print_reading(kinds, texts, reader)
        print_search(kinds, rare_words, model, Path(place, "index"))


def print_reading(kinds: Sequence[str], texts: Sequence[str], reader: Sure) -> None:
    """Print recall and precision of words by kind, and by the least confidence."""

    def counted(chosen: Sequence[int], least: float) -> tuple[float, float]:
        true, read, both = 0, 0, 0
        for number in chosen:
            kept = [line.text for line in reader.read_lines[number] if line.confidence >= least]
            wanted, found = words_of(texts[number]), words_of("\n".join(kept))
            true, read, both = true + wanted.total(), read + found.total(), both + (wanted & found).total()
        return 100 * both / true, 100 * both / max(1, read)

    every = range(len(kinds))
    rows = [(f"{least:.1f}", *(f"{each:.1f}" for each in counted(every, least))) for least in np.arange(0, 1, 0.1)]
    print(Table(["least confidence", "recall", "precision"], rows).to_markdown())
    rows = []
    for kind in KINDS:
        chosen = [number for number in every if kinds[number] == kind]
        seconds = float(np.median([reader.seconds[number] for number in chosen]))
        rows.append(
            (kind, str(len(chosen)), *(f"{each:.1f}" for each in counted(chosen, LEAST_CONFIDENCE)), f"{seconds:.2f}")
        )
    rows.append(("all", str(len(kinds)), *(f"{each:.1f}" for each in counted(every, LEAST_CONFIDENCE)), ""))
    print(Table(["pictures", "count", "recall of words", "precision", "CPU s, median"], rows).to_markdown())


def misspelt(word: str, draw: np.random.Generator) -> str:
    """Return a word with one letter replaced."""
    place = int(draw.integers(len(word)))
    return f"{word[:place]}{'x' if word[place] != 'x' else 'z'}{word[place + 1 :]}"


def print_search(kinds: Sequence[str], rare_words: Sequence[str], model: Eyeless, index: Path) -> None:
    """Print how often the picture of a rare word comes first, or among the first five."""
    draw = np.random.default_rng(0)
    with SearchEngine(model, Index.open(index)) as engine:
        rows = []
        for name, asked in (
            ("the word", list(rare_words)),
            ("one letter wrong", [misspelt(word, draw) for word in rare_words]),
        ):
            answers = engine.answer(asked, Page(top_k=5))
            ranks = [
                next((hit.rank for hit in answer.hits if hit.id == f"{number:03}.png"), 9)
                for number, answer in enumerate(answers)
            ]
            firsts = [100 * float(np.mean(np.array(ranks) <= most)) for most in (1, 5)]
            rows.append((name, *(f"{each:.1f}" for each in firsts)))
            missed = Counter(kind for kind, rank in zip(kinds, ranks, strict=True) if rank > 5)
            print(f"{name}: not among the first five: {dict(missed)}")
    print(Table(["query", "R@1", "R@5"], rows).to_markdown())


def measure_photographs(options: argparse.Namespace) -> None:
    """Read photographs, and compare the recall of captions before and after."""
    model, corpus = openvse.load(options.model), open_corpus(options.data).split("test")
    places = range(min(options.count, len(corpus.image_ids)))
    with tempfile.TemporaryDirectory() as place:
        folder, index = Path(place, "photos"), Path(place, "index")
        folder.mkdir()
        for number in places:
            (folder / corpus.image_ids[number]).symlink_to(Path(str(corpus.image_paths[number])).resolve())
        openvse.index(model, folder, index, openvse.IndexSettings(towers="none"), features=options.features)
        before, size = recalls(model, corpus, places, index), size_of(index)
        reader = Sure()
        read_texts(index, reader)
        after, grown = recalls(model, corpus, places, index), size_of(index)
        has_text = np.array([lines_in(stored_lines(lines)) != [] for lines in reader.read_lines])
        seconds = np.array(reader.seconds)
        print(f"{len(has_text)} photographs, {int(has_text.sum())} have text")
        for name, chosen in (("with text", has_text), ("without", ~has_text)):
            if chosen.any():
                print(f"CPU s {name}: median {np.median(seconds[chosen]):.2f}, mean {seconds[chosen].mean():.2f}")
        print(f"index {size:,} bytes, with text {grown:,}; peak memory {peak_mb():.0f} MB")
        rows = [
            (name, *(f"{each:.2f}" for each in some)) for name, some in (("without text", before), ("with text", after))
        ]
        print(Table(["index", "R@1", "R@5", "R@10"], rows).to_markdown())
        if options.out is not None:
            show_some(options.out, index, folder)


def recalls(model: Any, corpus: Any, places: range, index: Path) -> list[float]:
    """Return R@1, R@5 and R@10 of the captions of some images."""
    wanted = [
        (corpus.captions[text], corpus.image_ids[image])
        for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True)
        if image in places
    ]
    with SearchEngine(model, Index.open(index)) as engine:
        ranks = []
        for start in range(0, len(wanted), 256):
            some = wanted[start : start + 256]
            answers = engine.answer([text for text, _ in some], Page(top_k=10))
            for (_, name), answer in zip(some, answers, strict=True):
                ranks.append(next((hit.rank for hit in answer.hits if hit.id == name), 99))
    return [100 * float(np.mean(np.array(ranks) <= most)) for most in (1, 5, 10)]


def show_some(out: Path, index: Path, folder: Path) -> None:
    """Copy 30 photographs that have text, and write what was read in each."""
    out.mkdir(parents=True, exist_ok=True)
    opened, written = Index.open(index), []
    with opened.database() as database:
        rows = database.read(
            "SELECT id, lines FROM items JOIN readings USING (key) WHERE lines != '[]' ORDER BY key LIMIT 30"
        )
    for number, (name, lines) in enumerate(rows):
        shutil.copy(folder / str(name), out / f"{number:02}.jpg")
        read = "; ".join(f"{line.text} ({line.confidence:.2f})" for line in lines_in(str(lines)))
        written.append(f"{number:02} {name}: {read}")
    (out / "read.txt").write_text("\n".join(written))


def size_of(index: Path) -> int:
    """Return the bytes of the database of an index."""
    return sum(path.stat().st_size for path in index.glob("items-*.sqlite"))


def peak_mb() -> float:
    """Return the largest memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    pictures = commands.add_parser("drawn")
    pictures.add_argument("--count", type=int, default=120)
    pictures.add_argument("--seed", type=int, default=2)
    pictures.add_argument("--photos", type=Path)
    pictures.add_argument("--fonts", type=Path, default=Path("/usr/share/fonts"))
    pictures.set_defaults(run=measure_drawn)
    photographs = commands.add_parser("photographs")
    photographs.add_argument("model", type=Path)
    photographs.add_argument("data")
    photographs.add_argument("--features", type=Path)
    photographs.add_argument("--count", type=int, default=300)
    photographs.add_argument("--out", type=Path, help="where 30 of those with text are copied, to be looked at")
    photographs.set_defaults(run=measure_photographs)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
