"""Files of strangers: mutated companions of good photographs, and mutated tables, under a limit of memory.

    python benchmarks/strangers.py [companions] [tables] [--companions 10000] [--tables 2000] [--seed 0] [--gb 4]

Companions are sidecars of XMP, the JSON of a Takeout, texts and metadata, beside photographs of which each has another
content. ``openvse index`` has to index all of them, and ``openvse data check`` to end. Tables are read one by one.
Nothing may print a traceback, take more than 30 s of a file, or more memory than the limit of the process.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from PIL import Image

from _measure import environment, table
from openvse.datasets import open_corpus
from openvse.errors import OpenVSEError
from openvse.indexing.index import Index
from openvse.retrieval.build import build_model
from openvse.tasks.recipes import parse_recipe

AT_ONCE = 2000
LONGEST_S = 30.0
MOST = 1 << 19  # bytes of a mutated file
DESCRIPTION = (
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    b'<rdf:Description xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xmp="http://ns.adobe.com/xap/1.0/" '
    b'xmlns:exif="http://ns.adobe.com/exif/1.0/" exif:GPSLatitude="52,31.25N" exif:GPSLongitude="13,24.5E" '
    b'exif:DateTimeOriginal="2024-06-01T10:00:00+02:00" xmp:Rating="4" xmp:Label="Red">'
    b'<dc:title><rdf:Alt><rdf:li xml:lang="x-default">A title</rdf:li></rdf:Alt></dc:title>'
    b"<dc:subject><rdf:Bag><rdf:li>dog</rdf:li><rdf:li>park</rdf:li></rdf:Bag></dc:subject>"
    b'<r:Regions xmlns:r="http://www.metadataworkinggroup.com/schemas/regions/"><r:RegionList><rdf:Bag><rdf:li '
    b'r:Name="Anna" r:Type="Face"/></rdf:Bag></r:RegionList></r:Regions></rdf:Description></rdf:RDF></x:xmpmeta>'
)
TAKEOUT = {
    "title": "NAME",
    "description": "a dog in a park",
    "photoTakenTime": {"timestamp": "1717228800"},
    "geoData": {"latitude": 52.52, "longitude": 13.4},
    "geoDataExif": {"latitude": 0.0, "longitude": 0.0},
    "people": [{"name": "Anna"}, {"name": "Ben"}],
}
LINE = {"file_name": "NAME", "captions": ["a dog", "it runs"], "title": "A dog", "taken": "2024-06-01", "tags": ["a"]}
COMPANIONS: dict[str, Callable[[str], bytes]] = {
    "{}.jpg.xmp": lambda name: DESCRIPTION,
    "{}.xmp": lambda name: DESCRIPTION,
    "{}.jpg.json": lambda name: json.dumps({**TAKEOUT, "title": name}).encode(),
    "{}.json": lambda name: json.dumps({**TAKEOUT, "title": name}).encode(),
    "{}.txt": lambda name: b"a dog runs\n['a cat', 'it sleeps']\nthe third sentence\n",
    "metadata.jsonl": lambda name: json.dumps({**LINE, "file_name": name}).encode(),
}
"""The name of each kind of companion, and a sound one."""

ODD = (
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\x1b[2J",
    b"\r",
    b"\xed\xa0\x80",
    "\u202e\u2028".encode(),
    b"NaN",
    b"1e999",
)


def mutated(content: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    """Return a file with one to three changes: bytes flipped, cut, repeated, nested, or of another kind."""
    for _ in range(draw.randint(1, 3)):
        at, end = sorted(draw.randrange(len(content) + 1) for _ in "ab")
        match draw.choice(("flip", "cut", "drop", "repeat", "nest", "other", "odd", "number")):
            case "flip":
                whole = bytearray(content)
                for _ in range(draw.randint(1, 9) if whole else 0):
                    whole[draw.randrange(len(whole))] = draw.randrange(256)
                content = bytes(whole)
            case "cut":
                content = content[:at]
            case "drop":
                content = content[:at] + content[end:]
            case "repeat":
                content = content[:end] + content[at:end] * draw.choice((2, 50, 1000)) + content[end:]
            case "nest":
                opened, closed = draw.choice(
                    ((b"[", b"]"), (b'{"title":', b"}"), (b"<rdf:li>", b"</rdf:li>"), (b"(", b")"))
                )
                times = draw.choice((2, 90, 5000))
                content = content[:at] + opened * times + content[at:end] + closed * times + content[end:]
            case "other":
                content = draw.choice(others)
            case "odd":
                content = content[:at] + draw.choice(ODD) + content[at:]
            case "number":
                content = content[:at] + b"9" * draw.choice((1, 30, 4500)) + content[at:]
        content = content[:MOST]
    return content


def write_companion(photo: Path, kind: str, draw: random.Random) -> None:
    """Write a mutated companion of a photograph. One of metadata is a line, or more, of the folder's file."""
    others = [each(photo.name) for each in COMPANIONS.values()] + [photo.read_bytes(), draw.randbytes(200), b""]
    with (photo.parent / kind.format(photo.stem)).open("ab") as file:
        file.write(mutated(COMPANIONS[kind](photo.name), draw, others) + b"\n")


def write_photo(path: Path, number: int) -> None:
    """Write a photograph whose content is that of no other number."""
    colours = [number & 255, number >> 8 & 255, number >> 16 & 255]
    Image.new("RGB", (32, 24), tuple(colours)).save(path.with_suffix(".png"), "PNG")
    path.with_suffix(".png").rename(path)


def tables(draw: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of sound tables and archives, drawn without end."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = [(f"{number}.jpg", f"a dog number {number}", "train") for number in range(20)]
    columns = dict(zip(("file_name", "caption", "split"), map(list, zip(*rows, strict=True)), strict=True))
    held = pa.table({**columns, "caption": [[text, "it runs"] for text in columns["caption"]]})
    packed, streamed, filed, archive = (io.BytesIO() for _ in range(4))
    parquet.write_table(held, packed, row_group_size=7)
    for target, new in ((streamed, pa.ipc.new_stream), (filed, pa.ipc.new_file)):
        with new(target, held.schema) as writer:
            writer.write_table(held)
    with tarfile.open(fileobj=archive, mode="w") as shard:
        for name, text, _ in rows[:6]:
            for member, content in ((name, b"\xff\xd8\xff"), (name.replace("jpg", "txt"), text.encode())):
                entry = tarfile.TarInfo(member)
                entry.size = len(content)
                shard.addfile(entry, io.BytesIO(content))
    lines = "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
    text = "\n".join([",".join(columns), *(",".join(row) for row in rows)])
    sound = {
        "a.csv": text.encode(),
        "a.tsv": text.replace(",", "\t").encode(),
        "a.jsonl": lines.encode(),
        "a.parquet": packed.getvalue(),
        "a.arrow": draw.choice((streamed, filed)).getvalue(),
        "a.tar": archive.getvalue(),
    }
    while True:
        name = draw.choice([*sound])
        yield name, mutated(sound[name], draw, [*sound.values()])


def limited(gigabytes: float) -> None:
    """Bound the address space of this process."""
    resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * 2**30),) * 2)


def read_tables(folder: Path, count: int, seed: int) -> list[str]:
    """Read mutated tables, and return a line for each that raised anything but an error of openvse, or took long."""
    draw, faults = random.Random(seed), []
    kinds = Counter[str]()
    for (name, content), number in zip(tables(draw), range(count), strict=False):
        place = folder / name
        place.write_bytes(content)
        kinds[name] += 1
        began = time.process_time()
        try:
            open_corpus(str(place), require_images=False)
        except OpenVSEError as error:
            if "\n" in str(error):
                faults.append(f"{number} {name}: an error of several lines")
        except BaseException as error:
            faults.append(f"{number} {name}: {type(error).__name__}: {str(error)[:200]}")
        if time.process_time() - began > LONGEST_S:
            faults.append(f"{number} {name}: {time.process_time() - began:.0f} s")
    print(*(f"{count:,} {name}" for name, count in kinds.items()), sep=", ")
    return faults


def run(command: Sequence[str], gigabytes: float) -> tuple[int, str, float]:
    """Run the command line in a limited process. Return its status, what it printed and its seconds."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "openvse", *command],
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=partial(limited, gigabytes),
    )
    return done.returncode, done.stdout + done.stderr, time.perf_counter() - began


def write_model(folder: Path) -> None:
    """Write a small untrained model."""
    tree = {
        "name": "tiny",
        "embed_dim": 16,
        "image": {
            "encoder": {"name": "efficientnet_lite0", "pretrained": False, "image_size": 32, "projection": "linear"}
        },
        "text": {"encoder": {"name": "bigru", "word_dim": 8, "min_count": 1}},
        "objective": {"ranking": {"name": "contrast", "miner": "hardest", "criterion": "hinge"}},
        "training": {"phases": [{"epochs": 1}]},
    }
    tree["image"]["aggregator"] = tree["text"]["aggregator"] = "mean"  # type: ignore[index]
    build_model(parse_recipe(tree), captions=["a dog"]).eval().save(folder)


def index_companions(folder: Path, count: int, seed: int, gigabytes: float) -> list[list[object]]:
    """Return a row for each folder of photographs with mutated companions: what was asked, and what came of it."""
    draw, rows = random.Random(seed), []
    write_model(folder / "model")
    for start in range(0, count, AT_ONCE):
        photos = folder / f"photos{start}"
        photos.mkdir()
        some = range(start, min(start + AT_ONCE, count))
        for number in some:
            write_photo(photos / f"{number:07d}.jpg", number)
            write_companion(photos / f"{number:07d}.jpg", draw.choice([*COMPANIONS]), draw)
        out = folder / f"index{start}"
        status, said, seconds = run(["index", str(folder / "model"), str(photos), "--out", str(out)], gigabytes)
        items = len(Index.open(out)) if status == 0 else 0
        checked, more, longer = run(["data", "check", str(photos)], gigabytes)
        traced = ("Traceback" in said) + ("Traceback" in more)
        rows.append([len(some), items, status, seconds, checked, longer, traced])
        if traced or status:
            print(said[-2000:], more[-2000:], sep="\n")
    return rows


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=["companions", "tables", []])
    parser.add_argument("--companions", type=int, default=10_000)
    parser.add_argument("--tables", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gb", type=float, default=4.0)
    given = parser.parse_args()
    print(environment(), "\n")
    with tempfile.TemporaryDirectory() as temporary:
        if not given.parts or "companions" in given.parts:
            rows = index_companions(Path(temporary), given.companions, given.seed, given.gb)
            names = ["companions", "indexed", "status", "index, s", "status of check", "check, s", "tracebacks"]
            print(table(names, rows), flush=True)
        if not given.parts or "tables" in given.parts:
            limited(given.gb)
            began = time.perf_counter()
            faults = read_tables(Path(temporary), given.tables, given.seed)
            print(
                *faults,
                f"{len(faults)} faults of {given.tables:,} tables, {time.perf_counter() - began:.0f} s",
                sep="\n",
            )


if __name__ == "__main__":
    main()
