"""Every command that writes: the state that it begins with, and what a later command must find after a stop."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tests.crash.tries import Case, close, command, printed

BASE = Path(os.environ.get("OPENVSE_CRASH", "build/crash")).absolute()
"""Where the materials and the states are."""

MODEL, OTHER, ALBUM = (BASE / "materials" / name for name in ("run/best", "other", "album"))
RECIPE, CLIP, QUESTIONS = (BASE / "materials" / name for name in ("tiny.yaml", "clip", "questions"))
QUERIES = ("red sky above green ground", "a blue field under something yellow", "red")
NO_TOWERS = {"OPENVSE_TOWERS": "none"}
READS_ONLY = {"duplicates", "data check", "list"}
"""Commands that write no file."""

MADE_OF_OTHERS = {"demo": ("train", "index"), "serve": ("index",)}
"""Commands that write by the functions of others alone: the demo's run and index, and what ``--watch`` updates."""

Look = Callable[[Path], Any]


def make_materials() -> None:
    """Make the album, two models, a CLIP and a model that answers questions."""
    from tests.cli.album import write_album, write_recipe

    ALBUM.parent.mkdir(parents=True, exist_ok=True)
    write_album(ALBUM, 20)
    command_ok("train", write_recipe(RECIPE, ALBUM), "--out", MODEL.parent)
    import openvse

    other = openvse.load(MODEL)
    for weight in other.parameters():
        weight.data = weight.data.flip(0)
    other.save(OTHER)


def make_clip() -> None:
    """Make the checkpoint of a small CLIP."""
    from tests.dual_checkpoints import save_dual

    save_dual("clip", CLIP)


def make_questions() -> None:
    """Make a model that answers questions about images."""
    import yaml

    from tests.tiny_questions import answering_tree

    QUESTIONS.mkdir()
    lines = []
    for number in range(15):
        shutil.copy(ALBUM / f"{number:02d}.png", QUESTIONS)
        split = ("train", "train", "train", "validation", "test")[number % 5]
        lines.append({"file_name": f"{number:02d}.png", "question": "is it red", "answer": "yes", "split": split})
        lines.append({**lines[-1], "question": "what is it", "answer": ("red", "blue")[number % 2]})
    (QUESTIONS / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    tree = answering_tree(QUESTIONS)
    encoder = {"name": "efficientnet_lite0", "pretrained": False, "image_size": 64, "augmentation": "none"}
    tree["image"]["encoder"] = encoder
    tree["data"] = {"source": str(QUESTIONS), "features": "auto"}
    (QUESTIONS / "recipe.yaml").write_text(yaml.safe_dump(tree))
    command_ok("train", QUESTIONS / "recipe.yaml", "--out", QUESTIONS / "run")


def command_ok(*words: object) -> None:
    """Run a command in this process, which must end well."""
    with suppress(SystemExit):
        try:
            command(words)
        except SystemExit as stop:
            if stop.code:
                raise RuntimeError(f"{words} ended with {stop.code}") from stop
            raise


# What is found


def in_index(state: Path, *, engine: bool = False, vectors: bool = True) -> Any:
    """Return what searches find, by the engine and exactly, and what the index holds."""
    from openvse.search import Index

    def hits(*more: str) -> Any:
        answer = printed("search", state, *QUERIES, "-k", "99", *more)
        return {query["query"]: {hit["id"]: hit["score"] for hit in query["hits"]} for query in answer["queries"]}

    opened = Index.open(state, check=True)
    seen: dict[str, Any] = {"hits": hits(), "model": opened.manifest.model}
    if engine:
        seen["exact"] = hits("--engine", "exact")
    if vectors:
        held = opened.gather(np.arange(len(opened.table.ids))).astype(float)
        seen["vectors"] = {name: row.ravel().tolist() for name, row in zip(opened.table.ids, held, strict=True)}
    return seen


def in_store(state: Path) -> Any:
    """Return the features of a store."""
    from openvse.features.store import FeatureStore

    store = FeatureStore(state, check=True)
    return {name: store.gather(store.positions([name])).values.ravel().tolist() for name in store.ids}


def in_model(state: Path) -> Any:
    """Return what a model makes of sentences and images."""
    import openvse

    model = openvse.load(state)
    texts = model.encode_text(list(QUERIES)).vectors.detach().numpy().ravel().tolist()
    images = model.encode_image([ALBUM / "00.png"]).vectors.detach().numpy().ravel().tolist()
    curve = model.calibration
    return {"texts": texts, "images": images, "curve": None if curve is None else json.loads(curve.to_json())}


def in_export(state: Path) -> Any:
    """Return what an export makes of sentences and images."""
    from openvse.runtime import OnnxModel

    model = OnnxModel(state)
    texts, images = model.encode_text(list(QUERIES)), model.encode_image([ALBUM / "00.png"])
    found = {"texts": np.asarray(texts.vectors).ravel().tolist(), "images": np.asarray(images.vectors).ravel().tolist()}
    return {**found, "fingerprint": model.fingerprint}


def in_files(state: Path) -> Any:
    """Return the files that a program which knows nothing of openvse finds."""
    found: dict[str, Any] = {}
    for path in sorted(state.rglob("*")):
        name = path.relative_to(state)
        is_hidden = any(part.startswith(".") for part in name.parts)
        if path.is_file() and not is_hidden and name.name != "writer.lock":
            found[str(name)] = _content(path)
    return found


def _content(path: Path) -> Any:
    if path.suffix == ".npy":
        return np.load(path).astype(float).ravel().tolist()
    if path.suffix == ".parquet":
        from pyarrow import parquet

        rows = parquet.read_table(path).to_pylist()
        return [[row["id"], row["vector"]] for row in rows]
    if path.suffix == ".json":
        return json.loads(path.read_text())
    if path.suffix == ".html":
        return path.read_text()[-8:].strip()
    return path.read_text() if path.suffix in (".txt", ".csv", ".md") else path.stat().st_size > 0


def in_encoding(state: Path) -> Any:
    """Return the output of ``encode`` as its own reader sees it."""
    from openvse.files import settle

    names = [path.name for path in state.glob("*.json")] + [path.name[1:-6] for path in state.glob(".*.ready")]
    for name in {*names}:
        settle(state, name)
    return in_files(state)


def in_run(state: Path) -> Any:
    """Return how far a run is, its best model, and its metrics."""
    from openvse.training.optimizer import CHECKPOINT, load_checkpoint

    seen: dict[str, Any] = {}
    if (state / CHECKPOINT).exists():
        progress, kept = load_checkpoint(state / CHECKPOINT)
        seen["step"] = progress.global_step
        seen["weights"] = {name: float(each.double().abs().sum()) for name, each in kept["model"].items()}
    if (state / "best").exists():
        seen["best"] = in_model(state / "best")
    if (state / "metrics.jsonl").exists():
        rows = []
        for line in (state / "metrics.jsonl").read_text().splitlines():
            with suppress(ValueError):  # the line that a stopped run was writing, which readers leave out
                row = json.loads(line)
                if row["kind"] not in ("environment", "time", "data"):
                    rows.append([row["kind"], row["global_step"], row.get("loss"), row.get("rsum")])
        seen["metrics"] = rows
    return seen


# What may be between


def _error(found: Any) -> str:
    return str(found["error"]) if isinstance(found, dict) and "error" in found else ""


def some_items(before: Any, after: Any, found: Any) -> str:
    """Each item as before or as after; an index without any is refused in one line."""
    if _error(found):
        return "" if _error(before) else _error(found)
    held = {} if _error(before) else before["vectors"]
    for name, row in found["vectors"].items():
        if not close(held.get(name), row) and not close(after["vectors"].get(name), row):
            return f"{name} is neither as before nor as after"
    if len({frozenset(found["vectors"]), *(frozenset(each) for each in found["hits"].values())}) > 1:
        return "searches do not find what the index holds"
    for query, hits in found.get("exact", {}).items():
        shared = hits.keys() & found["hits"][query].keys()
        if any(not close(hits[name], found["hits"][query][name]) for name in shared):
            return f"the engine and the exact search differ for {query}"
    return ""


def part_of_after(before: Any, after: Any, found: Any) -> str:
    """A store holds some items, each of them whole."""
    if _error(found):
        return "" if _error(before) else _error(found)
    wrong = [name for name, value in found.items() if not close(after.get(name), value)]
    return f"others than after: {wrong[:3]}" if wrong else ""


def nothing_yet(before: Any, after: Any, found: Any) -> str:
    """What was not there before is refused in one line until it is there."""
    return "" if _error(before) and _error(found) else f"{str(found)[:200]}"


def reads_or_refuses(before: Any, after: Any, found: Any) -> str:
    """What there is of a run can be read, or is refused in one line; a bug is told elsewhere."""
    return ""


def old_run_or_new(before: Any, after: Any, found: Any) -> str:
    """The old run is whole until the new one has a checkpoint; then there is no best model until the next epoch."""
    if _error(found):
        return "" if "/best is not a model folder" in _error(found) else _error(found)
    if found.get("step") == before["step"] and close(found.get("weights"), before["weights"]):
        return "" if close(found, before) else "the old checkpoint without all of the old run"
    if "step" not in found:
        return "" if close(found.get("best"), before["best"]) or "best" not in found else "another model"
    return "the best model of the old run in the new one" if close(found.get("best"), before["best"]) else ""


# States


def pictures(home: Path, numbers: Sequence[int]) -> Path:
    """Copy some images of the album, with their captions."""
    folder = home / "pictures"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    lines = (ALBUM / "metadata.jsonl").read_text().splitlines()
    for number in numbers:
        shutil.copy(ALBUM / f"{number:02d}.png", folder)
    (folder / "metadata.jsonl").write_text("".join(f"{lines[number]}\n" for number in numbers))
    return folder


def changed(home: Path) -> None:
    """Add, replace and remove pictures."""
    folder = home / "pictures"
    for number in (17, 18):
        shutil.copy(ALBUM / f"{number:02d}.png", folder)
    shutil.copy(ALBUM / "15.png", folder / "03.png")
    os.utime(folder / "03.png", (1_700_000_000, 1_700_000_000))
    (folder / "00.png").unlink()


def indexed(*options: str, change: bool = True, model: Path = MODEL) -> Callable[[Path], None]:
    """Return what makes an index, and then changes its pictures."""

    def prepare(home: Path) -> None:
        os.environ |= NO_TOWERS
        pictures(home, range(8))
        write_words(home)
        command_ok("index", model, home / "pictures", "--out", home / "state", "--batch-size", "4", *options)
        if change:
            changed(home)

    return prepare


def with_pictures(home: Path) -> None:
    """Copy pictures, and make no state."""
    pictures(home, range(8))
    write_words(home)
    (home / "state").mkdir()


def write_words(home: Path) -> None:
    """Write sentences, for a query bank and for an index of sentences."""
    (home / "words.txt").write_text("red sky\ngreen ground\na blue field\nyellow\nblue sky above red ground\n")


def index_words(*options: str, model: Path = MODEL) -> Callable[[Path], Sequence[object]]:
    """Return the words of ``index``."""
    return lambda home: [
        "index", model, home / "pictures", "--out", home / "state", "--batch-size", "4",
        *(str(home / "words.txt") if option == "WORDS" else option for option in options),
    ]  # fmt: skip


def encode_words(name: str, *options: str) -> Callable[[Path], Sequence[object]]:
    """Return the words of ``encode``."""
    return lambda home: [
        "encode", MODEL, home / "pictures", "--out", home / "state" / name, "--shard-size", "4",
        "--batch-size", "2", *options,
    ]  # fmt: skip


def encoded(name: str) -> Callable[[Path], None]:
    """Return what makes an output of another model and other pictures."""

    def prepare(home: Path) -> None:
        with_pictures(home)
        command_ok("encode", OTHER, home / "pictures", "--out", home / "state" / name, "--shard-size", "2")
        pictures(home, range(2, 10))

    return prepare


def made_by(*words: object) -> Callable[[Path], None]:
    """Return what runs a command whose output is the state."""
    return lambda home: command_ok(*said(*words)(home))


def copied(source: Path) -> Callable[[Path], None]:
    """Return what copies a folder as the state."""
    return lambda home: shutil.copytree(source, home / "state") and None


def said(*words: object) -> Callable[[Path], Sequence[object]]:
    """Return a command whose output is the state."""
    return lambda home: [str(word).replace("STATE", str(home / "state")) for word in words]


def in_folder(name: str, look: Look) -> Look:
    """Return a look at a folder in the state."""
    return lambda state: look(state / name)


def _index(name: str, options: Sequence[str] = (), **more: Any) -> Case:
    words = index_words(*options, model=more.pop("model", MODEL))
    given = {"look": in_index, "prepare": indexed(), "between": some_items, "env": NO_TOWERS} | more
    option = next((each for each in ("--overwrite", "--query-bank", "--read-text") if each in options), "")
    return Case(name, f"index {option}".strip(), words, **given)


def with_engine(state: Path) -> Any:
    """Look at an index and its engine."""
    return in_index(state, engine=True)


def without_hits(state: Path) -> Any:
    """Look at an index whose scores a query bank changes."""
    seen = in_index(state)
    return {"vectors": seen["vectors"], "hits": {query: dict.fromkeys(hits, 0) for query, hits in seen["hits"].items()}}


def with_text(state: Path) -> Any:
    """Look at an index and at the text that was read in its pictures, which comes after they can be searched."""
    seen = in_index(state)
    found = printed("search", state, "invoice", "-k", "99")["queries"][0]["hits"]
    return {**seen, "text": {hit["id"]: [line["text"] for line in hit["text"]] for hit in found}}


def with_towers(state: Path) -> Any:
    """Look at an index by its towers, which a search may do without."""
    return in_index(state, vectors=False)


FEATURES = ("pretrained=false", "image_size=64", "--batch-size", "4")
ON_ALL = ("--on", ALBUM, "--split", "all")
OFTEN = ("training.checkpoint_every_s=1e-9", "training.log_every=1")


def make_arrays(home: Path) -> None:
    """Write features as others publish them: an array, and the ids of its rows."""
    np.save(home / "arrays.npy", np.random.default_rng(0).normal(size=(10, 3, 8)).astype("f4"))
    (home / "ids.txt").write_text("".join(f"{number:02d}.png\n" for number in range(10)))


def in_vectors(state: Path) -> Any:
    """Return the embeddings of an index of sentences."""
    from openvse.search import Index

    opened = Index.open(state, check=True)
    held = opened.gather(np.arange(len(opened.table.ids))).astype(float)
    return {"model": opened.manifest.model, "vectors": held.ravel().tolist()}


def settled(named: str) -> Look:
    """Return a look at the files of a set, as a reader of openvse sees them."""

    def look(state: Path) -> Any:
        from openvse.files import settle

        settle(state, named)
        return in_files(state)

    return look


def index_beside(home: Path) -> None:
    """Make an index, and an empty state."""
    indexed(change=False)(home)
    (home / "state").rename(home / "index")
    in_directory(home)


def lettered(home: Path) -> None:
    """Make an index, and then draw letters into two of its pictures."""
    from PIL import Image, ImageDraw, ImageFont

    indexed(change=False)(home)
    for number in (1, 2):
        image = Image.new("RGB", (400, 120), "white")
        draw = ImageDraw.Draw(image)
        draw.text((20, 30), f"Invoice {number}17", fill="black", font=ImageFont.load_default(48))
        image.save(home / "pictures" / f"{number:02d}.png")


def photos_beside(home: Path) -> None:
    """Make a state that holds photos without an index."""
    in_directory(home)
    pictures(home, range(8)).rename(home / "state" / "photos")


def old_page(home: Path) -> None:
    """Make a state that holds a page."""
    in_directory(home)
    (home / "state" / "page.html").write_text("old")


def in_sweep(state: Path) -> Any:
    """Return the results of a sweep; its runs are read as ``compare`` reads them, and not returned."""
    from openvse.files import settle
    from openvse.training.optimizer import CHECKPOINT

    for run in state.glob("runs/*"):
        settle(run, CHECKPOINT)
    settle(state, "sweep.csv")
    return {path.name: _content(path) for path in state.glob("sweep*")}


def in_directory(home: Path) -> None:
    """Make an empty state."""
    (home / "state").mkdir()


def untaught(home: Path) -> None:
    """Make photos and their index, by a model that learns from one caption more."""
    from tests.teaching.folders import make_index

    make_index(home / "state", 21, 19)


def teach_once(home: Path) -> None:
    """Save a caption as the page does, unless it was saved before, and end."""
    import openvse
    from openvse.errors import OpenVSEError
    from openvse.search.provided import TEACHER

    try:
        out = home / "state" / "index"
        with openvse.open(out, make=False) as engine:
            model = engine._model
        teacher = TEACHER.get()(out, model)
        if "20.jpg" not in teacher.captions:
            teacher.teach("20.jpg", "a yellow hat")
        teacher.close()
    except OpenVSEError as error:
        raise SystemExit(f"openvse: error: {error}") from error


def in_taught(state: Path) -> Any:
    """Return the captions, the embeddings of the index, and what its model makes of a sentence."""
    import openvse
    from openvse.search import Index

    opened = Index.open(state / "index", check=True)
    vectors = opened.gather(np.arange(len(opened))).astype(float).ravel().tolist()
    with openvse.open(state / "index") as engine:
        texts = np.asarray(engine._model.encode_text(["grass"]).vectors).ravel().tolist()
    return {"lines": (state / "photos" / "metadata.jsonl").read_text(), "vectors": vectors, "texts": texts}


def saved_or_learned(before: Any, after: Any, found: Any) -> str:
    """The caption was saved, and is not learned yet."""
    if _error(found):
        return _error(found)
    return "" if close(found, {**before, "lines": after["lines"]}) else "neither saved nor learned"


def judged(home: Path, name: str = "2.jpg") -> None:
    """Say that an image fits a sentence, unless that was said before."""
    from openvse.errors import OpenVSEError
    from openvse.search.hits import Judgements

    kept = Judgements(home / "state" / "judgements.jsonl")
    try:
        if name not in kept.of("a dog"):
            kept.add("a dog", name, True)
    except OpenVSEError as error:
        raise SystemExit(f"openvse: error: {error}") from error


def in_judged(state: Path) -> Any:
    """Return all judgements."""
    from openvse.search.hits import Judgements

    return {query: dict(items) for query, items in Judgements(state / "judgements.jsonl").every().items()}


CASES: tuple[Case, ...] = (
    Case(
        "serve fits",
        "serve",
        said("serve", "STATE"),
        look=in_judged,
        prepare=lambda home: ((home / "state").mkdir(), judged(home, "1.jpg"))[1],
        work=judged,
    ),
    Case(
        "serve teach",
        "serve --teach",
        said("serve", "STATE", "--teach"),
        look=in_taught,
        prepare=untaught,
        between=saved_or_learned,
        work=teach_once,
        env=NO_TOWERS,
    ),
    _index("index first", prepare=with_pictures),
    _index("index update"),
    _index("index int8 first", ("--engine", "int8"), prepare=with_pictures, look=with_engine),
    _index("index int8 update", prepare=indexed("--engine", "int8"), look=with_engine),
    _index("index exact to int8", ("--engine", "int8"), prepare=indexed(change=False), look=with_engine),
    _index(
        "index int8 to exact",
        ("--engine", "exact"),
        prepare=indexed("--engine", "int8", change=False),
        look=with_engine,
    ),
    _index("index replaced", ("--overwrite",), model=OTHER, prepare=indexed(change=False), between=None),
    _index(
        "index int8 replaced",
        ("--overwrite",),
        model=OTHER,
        prepare=indexed("--engine", "int8", change=False),
        look=with_engine,
        between=None,
    ),
    _index("index in half precision", ("--dtype", "float16"), prepare=indexed(change=False)),
    _index("index checked and compacted", ("--check",), prepare=indexed()),
    _index("index with a bank", ("--query-bank", "WORDS"), prepare=indexed(change=False), look=without_hits),
    _index("index with text", ("--read-text",), prepare=lettered, look=with_text, most=2),
    Case(
        "search first",
        "search",
        lambda home: ["search", home / "state" / "photos", "red", "--model", MODEL, "--yes"],
        in_folder("photos.index", in_index),
        photos_beside,
        some_items,
        env=NO_TOWERS,
        most=4,
    ),
    Case(
        "index of sentences",
        "index",
        lambda home: ["index", MODEL, home / "words.txt", "--out", home / "state"],
        in_vectors,
        with_pictures,
        nothing_yet,
        env=NO_TOWERS,
    ),
    Case("index towers", "index --towers", index_words("--towers", "text"), with_towers, indexed(change=False), most=2),
    Case(
        "extract first",
        "extract",
        lambda home: ["extract", "efficientnet_lite0", home / "pictures", home / "state", *FEATURES],
        in_store,
        with_pictures,
        part_of_after,
    ),
    Case(
        "data import",
        "data import",
        lambda home: ["data", "import", home / "arrays.npy", home / "state", "--ids", home / "ids.txt"],
        in_store,
        make_arrays,
        part_of_after,
    ),
    Case("encode npy", "encode", encode_words("x.npy"), in_encoding, with_pictures),
    Case("encode parquet", "encode", encode_words("x.parquet"), in_encoding, with_pictures),
    Case(
        "encode npy replaced", "encode --overwrite", encode_words("x.npy", "--overwrite"), in_encoding, encoded("x.npy")
    ),
    Case("encode folder", "encode", encode_words("x"), in_folder("x", in_encoding), with_pictures),
    Case(
        "encode folder replaced",
        "encode --overwrite",
        encode_words("x", "--overwrite"),
        in_folder("x", in_encoding),
        encoded("x"),
    ),
    Case("evaluate", "evaluate --out", said("evaluate", MODEL, *ON_ALL, "--out", "STATE"), settled("report.json")),
    Case(
        "evaluate calibrated",
        "evaluate --calibrate",
        said("evaluate", "STATE", *ON_ALL, "--calibrate"),
        in_model,
        copied(MODEL),
    ),
    Case("export first", "export", said("export", MODEL, "STATE"), in_export, between=nothing_yet, most=1),
    Case(
        "export replaced",
        "export",
        said("export", MODEL, "STATE"),
        in_export,
        made_by("export", OTHER, "STATE"),
        most=1,
    ),
    Case("blend", "blend", said("blend", MODEL, OTHER, "--on", ALBUM, "--out", "STATE"), in_model, between=nothing_yet),
    Case("convert", "convert", said("convert", CLIP, "STATE"), in_model, between=nothing_yet),
    Case(
        "train",
        "train",
        said("train", RECIPE, "--out", "STATE", *OFTEN),
        in_run,
        between=reads_or_refuses,
        again=said("train", RECIPE, "--out", "STATE", *OFTEN, "--resume"),
        most=30,
    ),
    Case(
        "train replaced",
        "train --overwrite",
        said("train", RECIPE, "--out", "STATE", "--overwrite"),
        in_run,
        made_by("train", RECIPE, "seed=5", "--out", "STATE"),
        old_run_or_new,
        most=30,
    ),
    Case(
        "sweep",
        "sweep",
        said("sweep", RECIPE, "training.batch_size=4,8", "--out", "STATE", "training.phases=[{epochs: 1}]"),
        in_sweep,
        between=reads_or_refuses,
        most=8,
    ),
    Case(
        "analyze replaced",
        "analyze",
        said("analyze", "captions", MODEL, *ON_ALL, "--out", "STATE", "--overwrite"),
        settled("captions.csv"),
        made_by("analyze", "captions", OTHER, *ON_ALL, "--out", "STATE"),
    ),
    Case(
        "search page",
        "search --html",
        lambda home: ["search", home / "index", "red", "--html", home / "state" / "page.html"],
        in_files,
        index_beside,
    ),
    Case(
        "compare page replaced",
        "compare --html",
        said("compare", MODEL, OTHER, *ON_ALL, "--html", "STATE/page.html", "--overwrite"),
        in_files,
        old_page,
    ),
    Case(
        "ask page",
        "ask --html",
        said("ask", QUESTIONS / "run", ALBUM / "00.png", "is it red", "--html", "STATE/page.html"),
        in_files,
        in_directory,
    ),
)
