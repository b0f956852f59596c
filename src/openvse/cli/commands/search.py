"""``openvse index``, ``openvse search`` and ``openvse duplicates``.

A folder in place of an index has its index made after a question, or updated. Queries are sentences, images or items.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from openvse.cli.app import app
from openvse.cli.options import (
    BatchSize,
    Device,
    Engine,
    Json,
    ModelName,
    Null,
    Out,
    Overwrite,
    Rerank,
    Reranking,
    RunSettings,
    argument,
    few_first,
    json_of,
    option,
    option_of,
    print_json,
    split_settings,
    with_settings,
)
from openvse.cli.progress import bar, counted, detail, going_on, note, warn
from openvse.errors import IndexFormatError, OpenVSEError
from openvse.files import refuse_there, whole_characters, write_page
from openvse.indexing.manifest import HOW, WHAT, IndexSettings, index_folder
from openvse.media.names import escaped, names_image
from openvse.media.segments import clock
from openvse.media.text_reading import shown_lines
from openvse.output.documents import percent
from openvse.pipeline import tell_skipped
from openvse.search.provided import SAME_MODEL, SENTENCES
from openvse.search.query import WHICH, Page, Query, only_sentences
from openvse.settings import FIRST, settings_of

if TYPE_CHECKING:
    from openvse.cli.progress import Display
    from openvse.indexing import Index
    from openvse.indexing.build import IndexReport
    from openvse.indexing.embedding import Sharing
    from openvse.pipeline import Workers, WorkProgress
    from openvse.search import Answer, SearchEngine
    from openvse.search.opening import FirstIndex, LoadedModel
    from openvse.search.updating import IndexUpdate

Folders = Annotated[
    list[Path],
    argument(
        "Folders of images, at any depth, or a text file with a sentence a line, to find captions by images.",
        metavar="FOLDER...",
    ),
]
Add = Annotated[bool, option("Add the folders to those that the index already holds.", "--add")]
Forget = Annotated[
    list[Path] | None, option("Folder to remove from the index, with its items. Can be given several times.")
]
Features = Annotated[
    Path | None, option("Feature store to read instead of unchanged images. Default: the store of the model's run.")
]
_SETTINGS = settings_of(IndexSettings)
ReadText = Annotated[Literal["rapidocr", "none"] | None, option_of(_SETTINGS["read_text"])]
Bank = Annotated[
    str | None,
    option_of(
        replace(_SETTINGS["query_bank"], is_list=False),
        "A file with one a line, a table of captions, or data such as flickr8k:/data/f8k, with 4,000 of its training "
        "captions; or none. Default: the model's own.",
    ),
]
CheckAll = Annotated[
    bool,
    option(
        "Compare the index with its checksums and all files with their hashes, and embed again items that are "
        "damaged, or whose file changed without a new time. Also rewrite the index files without "
        "rows that are no longer needed.",
        "--check",
    ),
]


@app.command(
    rich_help_panel="Search",
    cls=few_first(
        *("out", "add", "forget", "device"),
        panels={
            WHAT: ("features",),
            HOW: ("overwrite", "check"),
            "Speed and output": ("batch_size", "processes", "cluster", "threads", "as_json"),
        },
        bare={"--read-text": ("rapidocr", "none")},
    ),
)
@with_settings
@going_on("finished embeddings are kept: run the same command again to continue")
def index(
    model: ModelName,
    folders: Folders,
    *,
    out: Out = Path("index"),
    add: Add = False,
    forget: Forget = None,
    settings: Callable[..., IndexSettings],
    batch_size: BatchSize = 64,
    features: Features = None,
    query_bank: Bank = None,
    read_text: ReadText = None,
    overwrite: Overwrite = False,
    check: CheckAll = False,
    run: RunSettings,
    as_json: Json = False,
) -> None:
    """Embed folders of images for search. A later run embeds only changes, and a stopped run continues."""
    from openvse.runtime.model import load_embedder
    from openvse.search.updating import index as update

    workers = run.workers()
    loaded = load_embedder(model, device="cpu" if workers else run.device, threads=run.threads)
    tell_of_other(loaded, folders, out)
    with bar() as display:
        report = update(
            loaded,
            folders,
            out,
            settings(query_bank=bank_sentences(query_bank), read_text=read_text),
            batch_size=batch_size,
            add=add,
            forget=forget or (),
            features=features,
            overwrite=overwrite,
            threads=run.threads,
            check=check,
            sharing=None if workers is None else sharing_of(loaded, workers),
            progress=partial(show_step, display, out),
        )
    warn_of(report.items)
    for side, reason in report.towers.left_out.items() if report.towers else ():
        what = "load PyTorch" if side == "text" else "by images load PyTorch"
        (note if report.towers and report.towers.is_new else detail)(f"searches of {out} {what}: {reason}")
    print_report(out, report, as_json=as_json)


def tell_of_other(loaded: LoadedModel, folders: list[Path], out: Path) -> None:
    """Report that the index of the model's run holds a folder of a new index already."""
    from openvse.indexing import Index

    other = index_folder(Path(loaded.source).parent)
    if other is not None and index_folder(out) is None:
        with suppress(IndexFormatError):  # of another model, or damaged
            held = {root.path for root in Index.open(other, loaded.fingerprint).roots}
            if held & {str(each.resolve()) for each in folders}:
                note(f"{other} holds this folder, too: --out {other} updates it")


def bank_sentences(name: str | None) -> list[str] | None:
    """Return the sentences of ``--query-bank``, or None to keep the bank. Raise OpenVSEError if there are none."""
    return ([] if name else None) if name in (None, "", "none") else SENTENCES.get()(name)


def show_step(display: Display, out: Path, step: str, state: WorkProgress) -> None:
    """Show the progress of a step of the update."""
    if step == "towers" and not state.done:
        note(f"{out} can be searched; writing towers beside it, so that searches start without PyTorch")
    rate = f"{state.per_s:,.0f} {state.unit}/s" if state.per_s else ""
    names = {"images": "indexing", "text": "reading text", "towers": "writing towers"}
    display.show(names.get(step, step), state.done, state.total, note=rate)


def sharing_of(model: LoadedModel, workers: Workers) -> Sharing:
    """Return the processes that embed."""
    from openvse.indexing.embedding import Sharing

    return Sharing(workers, partial(SAME_MODEL.get(), model.source, model.fingerprint, workers.device))


def warn_of(report: IndexReport) -> None:
    """Warn of unusable or unreadable files and folders."""
    tell_skipped(report.failed)
    for path, reason in report.unreached:
        warn(f"{escaped(path)}: {reason}")
    for problem in report.metadata_problems:
        warn(problem)
    if report.left_out:
        warn(report.left_out.describe())


def print_report(out: Path, update: IndexUpdate, *, as_json: bool) -> None:
    """Print the result of an update, as a line or as JSON."""
    report, engine, bank, text = update.items, update.engine, update.bank, update.text
    name = engine.name
    if as_json:
        kinds = ("resumed", "stored", "recognised", "described", "segments", "removed", "compacted")
        counts = {"images": report.count, "unchanged": report.reused, "unreadable": len(report.failed)}
        counts |= {kind: getattr(report, kind) for kind in kinds}
        failed, unreached, unread = (
            [{"path": str(path), "reason": reason} for path, reason in paths]
            for paths in (report.failed, report.unreached, text.failed if text else ())
        )
        result = {
            "index": str(out),
            **counts,
            "failed": failed,
            "kept": unreached,
            "left_out": {kind: [*map(str, paths)] for kind, paths in report.left_out.files.items()},
            "engine": {"name": name, "put": engine.put, "removed": engine.removed},
            "towers": list(update.towers.sides) if update.towers else [],
            "query_bank": bank,
            "text": text and {**asdict(text), "failed": unread},
        }
        print_json("index", result)
        return
    typer.echo(f"{out}: {report}")
    if report.compacted:
        typer.echo(f"{report.compacted} rows that were no longer needed are gone from its files")
    if bank is not None and bank["source"] != "model":
        typer.echo(f"query bank: {bank['queries']:,} sentences, reliability {bank['reliability']:.2f}")
    if name != "exact":
        typer.echo(f"engine {name}: {engine.put} items put, {engine.removed} removed")
    if text is not None:
        typer.echo(f"text: {text.with_text} images have some ({text.read} read, {len(text.failed)} failed)")


Yes: TypeAlias = Annotated[
    bool,
    option(
        "Make the first index of a folder of images without asking, by --model, else OPENVSE_MODEL, else clip-b32.",
        "--yes",
    ),
]


def index_of(
    folder: Path, model: str | None, *, yes: bool, device: str, teach: bool = False
) -> tuple[Path, LoadedModel]:
    """Return the new or updated index of a folder of images, and the model that embeds its queries."""
    from openvse.search.opening import open_pictures

    with bar() as display:
        out, loaded, report = open_pictures(
            folder,
            model,
            partial(agree, yes=yes),
            device=device,
            teach=teach,
            progress=partial(show_step, display, folder),
        )
    if report is not None:
        warn_of(report)
        note(f"{out}: {report.count:,} images, up to date")
    return out, loaded


def agree(plan: FirstIndex, *, yes: bool) -> None:
    """Ask on a terminal whether to make an index. Raise OpenVSEError if the user does not want it."""
    if yes:
        note(str(plan))
    elif not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise OpenVSEError(f"{plan}: add --yes to make it")
    elif not typer.confirm(f"{plan}. Make it?", err=True):
        raise OpenVSEError("no index was made: name another model with --model, or an index")


QUERY = settings_of(Query)
Form = Literal["table", "json", "jsonl", "paths"]
Words = Annotated[
    list[str],
    argument(
        "An index, or a folder of images, whose index is made or updated, followed by sentences or paths of "
        "images to find similar ones. An index remembers its model. Name the model before the index if it has moved.",
        metavar="[MODEL] INDEX QUERY...",
    ),
]
ModelOption = Annotated[
    str | None,
    option("The model, in place of MODEL: a model folder, or the output of 'openvse export'.", metavar="NAME"),
]
Like = Annotated[list[str] | None, option_of(QUERY["like"], "Or an image. Can be repeated.", panel=FIRST)]
Avoid = Annotated[list[str] | None, option_of(QUERY["avoid"], "TEXT,weight=W: W times.", panel=FIRST)]
Image = Annotated[str | None, option_of(QUERY["image"], "IMAGE,weight=W: by the weight W.", panel=WHICH)]
Html = Annotated[Path | None, option("Write a contact sheet that opens in a browser.", metavar="FILE")]
Output = Annotated[
    Literal["table", "jsonl", "paths"] | None,
    option("table (the default), jsonl (a line of JSON for each hit) or paths (only paths).", metavar="FORM"),
]


@app.command(
    rich_help_panel="Search",
    cls=few_first(
        *("html", "as_json"),
        panels={WHICH: (), "How they are printed": ("output", "null")},
        renamed={"--with": "--image"},
    ),
)
@with_settings
def search(
    words: Words,
    *,
    model: ModelOption = None,
    query: Callable[..., Query],
    like: Like = None,
    avoid: Avoid = None,
    page: Page,
    image: Image = None,
    rerank: Rerank = None,
    engine: Engine = None,
    html: Html = None,
    yes: Yes = False,
    output: Output = None,
    null: Null = False,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Find the images that fit a sentence, or resemble an image."""
    from openvse.indexing import Index
    from openvse.search import SearchEngine
    from openvse.search.opening import holds_pictures, load_for_index

    named, folder, sentences = in_order(words, model)
    form = chosen_output(output, as_json=as_json, null=null)
    again = None if rerank is None else Reranking.read(rerank)
    loaded = None
    if holds_pictures(folder):
        folder, loaded = index_of(folder, named, yes=yes, device=device)
    index = Index.open(folder)
    asked = read_queries(sentences, like or [], index.table.ids)
    queries = queries_of(query, asked, image, avoid or [])
    if again is not None:
        only_sentences("rerank", queries)
    if index.manifest.holds == "sentences" and (rerank or html):
        raise OpenVSEError(f"{folder} holds sentences: leave out --rerank and --html, which need images")
    if html is not None:
        refuse_there([html], "choose another --html, or delete it first")
    loaded = loaded or load_for_index(folder, index.manifest, named, device=device)
    with SearchEngine(loaded, index, engine=engine) as searcher:
        reranker = None if again is None else again.load(device)
        if html is not None or reranker is not None:
            warn_of_far(searcher.note.far_roots(folder))
        answers = searcher.answer(queries, page, reranker)
    warn_of_gone(index, answers)
    if form in ("table", "json"):
        print_answers(index, asked, answers, page, as_json=form == "json")
    else:
        write_hits(index, asked, answers, form, null=null)
    if html is not None:
        write_sheet(html, searcher, asked, answers)


def in_order(words: Sequence[str], model: str | None) -> tuple[str | None, Path, Sequence[str]]:
    """Return the optional model, the index and the queries of ``[MODEL] INDEX QUERY...``.

    A folder of images may replace the index.
    """
    from openvse.search.opening import holds_pictures

    first, *others = words
    second = index_folder(others[0]) if others else None
    # The run that made an index may have one itself.
    if second is not None and index_folder(first) != Path(first):
        if model is not None:
            raise OpenVSEError(f"the model is given twice, as {first} and --model {model}: give one of them")
        return first, second, others[1:]
    if (folder := index_folder(first)) is not None:
        return model, folder, others
    if holds_pictures(first):
        return model, Path(first), others
    if others and holds_pictures(others[0]):
        return first, Path(others[0]), others[1:]
    what = f"neither {first} nor {others[0]} is an index" if others else f"{first} is not an index"
    raise IndexFormatError(f"{what}: give an index ('openvse index') or a folder of images")


@dataclass(frozen=True)
class Asked:
    """A sentence, an image or an item of the index. ``text`` is the sentence, the path as typed, or the id."""

    text: str
    image: Path | None = None
    is_item: bool = False

    @property
    def kind(self) -> str:
        """``image``, ``item`` or ``text``."""
        return "item" if self.is_item else "text" if self.image is None else "image"

    @property
    def part(self) -> dict[str, Any]:
        """The keyword of a query for it, and its value."""
        return {"image": self.image} if self.image else {"like" if self.is_item else "text": self.text}

    @property
    def title(self) -> str:
        """The query, for people."""
        return self.text if self.kind == "text" else f"images like {self.text}"


def asked_image(path: str | Path) -> Asked:
    """Return an image to search for. Raise OpenVSEError if there is no such file."""
    try:
        is_file, exists = Path(path).is_file(), Path(path).exists()
    except OSError:  # a name that no file can have
        is_file = exists = False
    if exists and not is_file:
        raise OpenVSEError(f"{path}: this is no ordinary file: give the path of an image or a clip")
    if not exists:
        raise OpenVSEError(f"{path}: this image does not exist: check the path, or end a sentence unlike a file name")
    return Asked(str(path), Path(path))


def read_queries(words: Sequence[str], like: Sequence[str], ids: Sequence[str]) -> list[Asked]:
    """Distinguish sentences from images, and in ``like`` items of an index from images, with any ending."""
    asked = [asked_image(word) if names_image(word) else Asked(whole_characters(word)) for word in words]
    known = set(ids) if like else set()
    for word in like:
        if word in known:
            asked.append(Asked(word, is_item=True))
        elif Path(word).is_file():
            asked.append(Asked(word, Path(word)))
        else:
            raise OpenVSEError(
                f"--like {word}: the index holds no item of this id, and there is no such file: give the path of an "
                f"image, or its path below the indexed folder"
            )
    if not asked:
        raise OpenVSEError("there is no query: give a sentence, the path of an image, or --like IMAGE")
    return asked


def queries_of(
    query: Callable[..., Query], asked: Sequence[Asked], image: str | None, avoid: Sequence[str]
) -> list[str | Query]:
    """Return the queries. Raise OpenVSEError if an image does not exist, or a weight is unreadable."""
    given: dict[str, Any] = {}
    if image is not None:
        if any(one.image is not None for one in asked):
            raise OpenVSEError("a query has two images: leave out --image, or the image among the queries")
        file, settings = split_settings(image, ("weight",))
        given["image"] = asked_image(file).image
        if settings.given:
            given["image_weight"] = settings.number("weight", Query.image_weight)
    weights = set[float]()
    for each in avoid:
        term, settings = split_settings(each, ("weight",))
        given.setdefault("avoid", []).append(term)
        weights |= {settings.number("weight", Query.avoid_weight)} if settings.given else set()
    if len(weights) > 1:
        raise OpenVSEError("--avoid has several weights: give all terms the same")
    if weights:
        given["avoid_weight"] = weights.pop()
    return [query(**given, **one.part) if one.text.strip() else one.text for one in asked]


def chosen_output(output: Literal["table", "jsonl", "paths"] | None, *, as_json: bool, null: bool) -> Form:
    """Return the form of the output. Raise OpenVSEError if two are requested."""
    forms: set[Form] = {output} if output else set()
    forms |= {"json"} if as_json else set()
    forms |= {"paths"} if null else set()
    if len(forms) > 1:
        raise OpenVSEError("one output at a time: give one of --json, --output and --null")
    return forms.pop() if forms else "table"


def print_answers(
    index: Index, asked: Sequence[Asked], answers: Sequence[Answer], page: Page, *, as_json: bool
) -> None:
    """Print queries and hits, as a table or as JSON."""
    from openvse.search.hits import uncertainty_of

    if as_json:
        queries = [
            {
                "query": one.text,
                "kind": one.kind,
                "unknown_words": [asdict(word) for word in answer.unknown_words],
                **uncertainty_of(answer),
                "hits": [hit.to_json() for hit in answer.hits],
            }
            for one, answer in zip(asked, answers, strict=True)
        ]
        print_json("search", {"index": str(index.path), "queries": queries})
        return
    sentences = index.manifest.holds == "sentences"
    for one, answer in zip(asked, answers, strict=True):
        typer.echo(one.title)
        for hit in answer.hits:
            likely = "" if hit.probability is None else f"{hit.fit:<8}  "
            if hit.probability is not None and (page.min_precision or page.expected):
                likely = f"{percent(hit.probability):>5}  "  # they speak of numbers
            name = escaped(hit.id if sentences else hit.path)
            span = "" if hit.start is None or hit.end is None else f"  {clock(hit.start)}-{clock(hit.end)}"
            matched = f"  ({', '.join(hit.matched)})" if hit.matched else ""
            alike = f"  (and {hit.alike} like it)" if hit.alike else ""
            typer.echo(f"  {hit.rank:>3}  {hit.score:7.4f}  {likely}{name}{span}{escaped(matched)}{alike}")
            if hit.text:
                typer.echo(f"       text: {escaped(shown_lines(hit.text))}")
        if not answer.hits and one.text.strip():
            typer.echo(f"  {nothing_of(page)}")
    if on_a_terminal() and any(hit.matched for answer in answers for hit in answer.hits):
        note("(words) were found in the captions, keywords or names. Such hits come first, so scores need not fall")


def on_a_terminal() -> bool:
    """Return whether a person reads the hits, who may want to know what they mean."""
    return sys.stdout.isatty()


def nothing_of(page: Page) -> str:
    """Return the line that replaces an empty page of hits."""
    if page.min_precision is not None:
        return f"no image of probability {page.min_precision:g}"
    reasons = {
        "these conditions": bool(page.where),
        f"a score of {page.min_score} or more": page.min_score is not None,
        f"a rank beyond {page.skip}": page.skip > 0,
    }
    given = " and ".join(reason for reason, is_given in reasons.items() if is_given)
    return f"no hit with {given}" if given else "no hit"


def write_hits(index: Index, asked: Sequence[Asked], answers: Sequence[Answer], form: Form, *, null: bool) -> None:
    """Print a line of JSON for each hit, or each path or sentence once, in the order of the queries and ranks."""
    if form == "paths":
        hits = [hit for each in answers for hit in each.hits]
        sentences = index.manifest.holds == "sentences"
        write_paths([*dict.fromkeys(hit.id if sentences else str(hit.path) for hit in hits)], null=null)
        return
    for one, answer in zip(asked, answers, strict=True):
        for hit in answer.hits:
            typer.echo(json_of({"query": one.text, "kind": one.kind, **hit.to_json()}))


def write_paths(paths: Sequence[str], *, null: bool) -> None:
    """Print paths as raw bytes, each followed by a newline, or by a zero byte with ``null``."""
    end = b"\0" if null else b"\n"
    sys.stdout.flush()
    sys.stdout.buffer.write(b"".join(os.fsencode(path) + end for path in paths))
    sys.stdout.buffer.flush()


def write_sheet(html: Path, engine: SearchEngine, asked: Sequence[Asked], answers: Sequence[Answer]) -> None:
    """Write the contact sheet, with the captions of the images."""
    from openvse.search import contact_sheet
    from openvse.search.sheets import captions_beside

    page = contact_sheet(
        {one.title: answer.hits for one, answer in zip(asked, answers, strict=True)},
        title="openvse search",
        examples={one.title: one.image for one in asked if one.image is not None},
        captions=captions_beside(engine.root),
    )
    write_page(html, page)
    note(f"written: {html}")


def warn_of_far(roots: Sequence[Path]) -> None:
    """Warn of indexed folders that are far from the index, whose images are about to be read."""
    if roots:
        warn(f"the index shows images below {', '.join(map(escaped, roots))}: use it only if you know who made it")


def warn_of_gone(index: Index, answers: Sequence[Answer]) -> None:
    """Warn if the folders of the index, or files of some hits, are gone."""
    remedy = "run 'openvse index' again"
    if not index.is_complete:
        warn(f"index {index.path} is not complete, because its indexing still runs or was stopped: {remedy} to go on")
    away = [root.path for root in index.roots if not Path(root.path).exists()]
    for root in away:
        warn(f"the images of index {index.path} are no longer in {escaped(root)}: {remedy}")
    if away:
        return
    gone = {hit.path: None for each in answers for hit in each.hits if not hit.path.is_file()}
    if gone:
        first = escaped(next(iter(gone)))
        are = "is" if len(gone) == 1 else "are"
        warn(f"{len(gone)} of the images found {are} no longer there (first: {first}): {remedy}")


@app.command(
    rich_help_panel="Search",
    cls=few_first(
        *("threshold", "null", "as_json"), bare={"--null": ("facts-stay", "facts-may-go")}, renamed={"-0": "--null"}
    ),
)
def duplicates(
    source: Annotated[Path, argument("A folder of images, at any depth, or the folder of an index.")],
    threshold: Annotated[
        float | None, option("For an index: lowest cosine between an image and the one to keep.", shown="0.98")
    ] = None,
    null: Annotated[
        Literal["facts-stay", "facts-may-go"] | None,
        option(
            "Print the paths of all images but the ones to keep, each followed by a zero byte. By itself it leaves out "
            "those that state what the one to keep lacks or states otherwise, such as a caption.",
            *("--null", "-0"),
            metavar="[facts-may-go]",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find images that are equal or nearly equal, and name the one of each group to keep, without deleting any.

    For a folder, the command compares the pictures themselves and needs no model. For an index, it compares embeddings,
    and finds other takes of a scene, too.
    """
    from openvse.search import find_duplicates

    if null and as_json:
        raise OpenVSEError("one output at a time: give --json or --null")
    with bar() as progress:
        show = counted(progress, "reading")
        groups, failed = find_duplicates(source, threshold, lambda done, total: show(done, total, 0.0))
    tell_skipped(failed)
    if null:
        kept = [path for group in groups for path in group.lost if null == "facts-stay"]
        write_paths([str(path) for group in groups for path in group[1:] if path not in kept], null=True)
        if kept:
            warn(f"{len(kept)} file(s) state what the ones to keep do not: -0 facts-may-go lists them, too")
        return
    if as_json:
        listed = [
            {
                "keep": keep,
                "why": group.why,
                "others": others,
                "lost": {str(path): group.lost[path] for path in group.lost},
            }
            for group in groups
            for keep, *others in [[*map(str, group)]]
        ]
        print_json("duplicates", {"source": str(source), "groups": listed})
        return
    for group in groups:
        typer.echo(f"keep  {escaped(group[0])}  ({group.why})")
        for other in group[1:]:
            lost = f"  (loses {', '.join(group.lost[other])})" if other in group.lost else ""
            typer.echo(f"      {escaped(other)}{lost}")
    count = sum(len(group) - 1 for group in groups)
    some = "1 group" if len(groups) == 1 else f"{len(groups)} groups"
    typer.echo(f"{source}: {some}, {count} more than the images to keep")
