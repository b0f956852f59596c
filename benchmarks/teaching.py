"""``openvse serve --teach``: from Enter to the next search, searches of others meanwhile, and what captions bring.

    python benchmarks/teaching.py [enter] [others] [found --flickr8k FOLDER]

``enter`` has folders of so many drawn images, of which so many have captions: seconds to save a caption, to solve the
maps, and from Enter to the hits of the next search, in the process of the teacher. ``others`` has four clients that
search an index of 10,000 images over HTTP while a caption arrives every two seconds, beside the same server without
``--teach``, in turns. ``found`` has 300 photographs of Flickr8k's test split, three times: the share of 60 sentences
whose photograph is among the first ten after so many captions of other photographs, in the order that the page asks.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import httpx
import numpy as np
import torch

import openvse
from _measure import environment, table
from openvse.datasets import open_corpus
from openvse.features.extract import FeatureStoreWriter
from openvse.indexing import Index
from openvse.indexing.database import Entry, Root
from openvse.indexing.manifest import Item, place_of
from openvse.indexing.writer import IndexWriter
from openvse.model.two_tower import TwoTower
from openvse.retrieval.names import write_model_of_names
from openvse.search.engine import SearchEngine
from openvse.tasks.load import load_two_tower
from openvse.teaching.described import FOLDER, Describer, name_of
from openvse.teaching.teacher import Teacher
from serving import loaded, sentences, serving
from strangers import write_photo

SIZES = ((1_000, (100, 400)), (10_000, (100, 400, 1_000)), (100_000, (100, 400)))
CAPTIONS = (0, 10, 20, 50)


def make_model(folder: Path) -> TwoTower:
    """Write the model of names of some drawn images."""
    if not (folder / "model").exists():
        (folder / "some").mkdir(parents=True)
        for number in range(8):
            write_photo(folder / "some" / f"{number}.jpg", number)
        write_model_of_names(folder / "some", folder / "model")
    model = load_two_tower(folder / "model")
    model.source = str(folder / "model")
    return model


def prepare(folder: Path, model: TwoTower, count: int) -> Path:
    """Write an index of files that hold no image, and drawn descriptions of them, which are all that teaching reads."""
    photos, out, draw = folder / f"photos{count}", folder / f"{count}" / "index", np.random.default_rng(0)
    if out.exists():
        return out
    photos.mkdir()
    out.mkdir(parents=True)
    (out.parent / "model").symlink_to((folder / "model").absolute())
    describer, entries = Describer(model), []
    place = out / FOLDER / str(describer.fingerprint)
    with FeatureStoreWriter(place, fingerprint=describer.fingerprint, dim=describer.feature_dim) as writer:
        for number in range(count):
            path = photos / f"{number:06d}.jpg"
            path.write_bytes(b"x" * (number % 97 + 1))
            status = path.stat()
            entries.append(Entry(Item(path.name, status.st_mtime_ns, status.st_size)))
            seen, likely = draw.normal(size=describer.feature_dim - 1000), draw.dirichlet(np.full(1000, 0.01))
            whole = np.concatenate([seen / np.linalg.norm(seen), likely]).astype(np.float32)
            writer.add(name_of(path, status.st_mtime_ns, status.st_size), torch.from_numpy(whole)[None])
    width, roots = model.image.aggregator.linear.out_features, [Root(0, str(photos), "")]
    where = place_of(model.source, out)
    with IndexWriter(out, model=model.fingerprint, roots=roots, model_place=where) as writer:
        for start in range(0, count, 1000):
            vectors = draw.normal(size=(len(entries[start : start + 1000]), 1, width)).astype(np.float32)
            writer.append(entries[start : start + 1000], vectors / np.linalg.norm(vectors, axis=2, keepdims=True))
    return out


def measure_enter(folder: Path) -> str:
    """Return the table of the times, medians of seven captions."""
    model, rows, asked = make_model(folder), list[list[object]](), sentences(3)
    for count, captioned in SIZES:
        place = prepare(folder, model, count)
        engine, teacher = SearchEngine(model, Index.open(place)), Teacher(place, model)
        for some in captioned:
            for number in range(len(teacher.captions), some):
                teacher.captions[f"{number:06d}.jpg"] = [next(asked)]
            teacher.teach(f"{some:06d}.jpg", next(asked))  # which knows all sentences, and chooses the ridge
            times = []
            for number in range(some + 1, some + 8):
                said, marks = next(asked), [time.perf_counter()]
                line = teacher._file.add(Path(teacher._root.path, "x.jpg"), [said])
                marks.append(time.perf_counter())
                teacher._file.remove(line)
                marks.append(time.perf_counter())
                teacher.teach(f"{number:06d}.jpg", said)
                marks.append(time.perf_counter())
                engine.catalogue.close()
                engine._attach(*teacher.present(Index.open(place)))
                engine.search("a dog", top_k=10)
                marks.append(time.perf_counter())
                teacher.next(3)
                marks.append(time.perf_counter())
                times.append([after - before for before, after in pairwise(marks)])
            save, _, learn, search, following = np.median(times, axis=0)
            rows.append([count, some, 1000 * save, 1000 * learn, 1000 * (learn + search), 1000 * following])
        teacher.close()
        shutil.rmtree(place.parent)
    names = ["images", "captioned", "saved, ms", "saved and learned, ms", "Enter to hits, ms", "which next, ms"]
    return table(names, rows)


def measure_others(folder: Path, seconds: float = 20.0) -> str:
    """Return the table of four clients with and without a fifth that teaches."""
    model, rows, asked = make_model(folder), list[list[object]](), sentences(4)
    prepare(folder, model, 10_000)

    async def teach(port: int) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            for key in range(1, 1000):
                reply = await client.post(f"/api/items/{key}/captions", json={"captions": [next(asked)]})
                assert reply.status_code == 200, reply.text
                await asyncio.sleep(2)

    async def both(port: int) -> list[object]:
        teaching = asyncio.create_task(teach(port))
        load = await loaded(port, 4, seconds)
        teaching.cancel()
        return load.row()

    for _ in range(3):
        with serving(folder / "10000") as served:
            asyncio.run(loaded(served.port, 4, 3, seed=1))
            rows.append(["plain", *asyncio.run(loaded(served.port, 4, seconds)).row()])
        with serving(folder / "10000", "--teach") as served:
            asyncio.run(loaded(served.port, 4, 3, seed=1))
            rows.append(["teaching", *asyncio.run(both(served.port))])
    return table(["server", "queries/s", "p50 ms", "p99 ms", "errors"], rows)


def measure_found(folder: Path, flickr8k: Path) -> str:
    """Return the table of what is found after so many captions."""
    corpus = open_corpus(f"flickr8k:{flickr8k}").split("test")
    captions: list[list[str]] = [[] for _ in corpus.image_ids]
    for image, text in zip(corpus.relevance.images, corpus.relevance.texts, strict=True):
        captions[image].append(corpus.captions[text])
    rows: list[list[object]] = []
    for draw in range(3):
        chosen = np.random.default_rng(draw).permutation(len(corpus.image_ids))[:300].tolist()
        photos = folder / f"draw{draw}"
        photos.mkdir()
        said = {}
        for row in chosen:
            path = Path(str(corpus.image_paths[row]))
            shutil.copy(path, photos / path.name)
            said[path.name] = captions[row]
        began = time.perf_counter()
        command = [sys.executable, "-m", "openvse", "search", str(photos), "a dog", "--yes"]
        subprocess.run(command, check=True, capture_output=True)
        first = time.perf_counter() - began
        asked, found, known = [*said][:60], list[object](), 0
        with openvse.open(photos) as engine:
            engine.teach(str(photos / [*said][-1]), "x")  # opens the teacher
            engine.undo()
            for count in CAPTIONS:
                while known < count:
                    name = next(each for each in engine._teacher.next(60) if each not in asked)
                    engine.teach(name, said[name][0])
                    known += 1
                pages = engine.search([said[name][1] for name in asked], top_k=10)
                places = zip(asked, pages, strict=True)
                found.append(statistics.mean(name in {hit.id for hit in page} for name, page in places))
        rows.append([draw, first, *found])
    return table(["draw", "first search, s", *(f"{count} captions" for count in CAPTIONS)], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=["enter", "others", "found", []])
    parser.add_argument("--flickr8k", type=Path)
    given = parser.parse_args(arguments)
    print(environment(), "\n")
    with tempfile.TemporaryDirectory() as temporary:
        for part in given.parts or ("enter", "others"):
            folder = Path(temporary, part)
            folder.mkdir()
            tables = {
                "enter": partial(measure_enter, folder),
                "others": partial(measure_others, folder),
                "found": partial(measure_found, folder, given.flickr8k),
            }
            print(tables[part](), flush=True)


if __name__ == "__main__":
    main()
