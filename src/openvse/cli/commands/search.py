"""``openvse search``: its queries are sentences, images by their paths, and items of an index."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from openvse.cli.app import app
from openvse.cli.commands.indexing import Yes, index_of
from openvse.cli.options import (
    Device,
    Engine,
    Json,
    Null,
    Rerank,
    Reranking,
    argument,
    few_first,
    json_of,
    option,
    option_of,
    print_json,
    split_settings,
    with_settings,
)
from openvse.cli.progress import note, warn
from openvse.errors import IndexFormatError, OpenVSEError
from openvse.files import refuse_there, whole_characters, write_page
from openvse.indexing.manifest import index_folder
from openvse.media.names import escaped, names_image
from openvse.media.segments import clock
from openvse.media.text_reading import shown_lines
from openvse.output.documents import percent
from openvse.search.query import WHICH, Page, Query, only_sentences
from openvse.settings import FIRST, settings_of

if TYPE_CHECKING:
    from openvse.indexing import Index
    from openvse.search import Answer, SearchEngine

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
