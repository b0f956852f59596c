"""``openvse index``, and a folder of images in place of an index: its index is made after a question, or updated."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from openvse.cli.app import app
from openvse.cli.options import (
    BatchSize,
    Json,
    ModelName,
    Out,
    Overwrite,
    RunSettings,
    argument,
    few_first,
    option,
    option_of,
    print_json,
    with_settings,
)
from openvse.cli.progress import bar, detail, going_on, note, warn
from openvse.errors import IndexFormatError, OpenVSEError
from openvse.indexing.manifest import HOW, WHAT, IndexSettings, index_folder
from openvse.media.names import escaped
from openvse.pipeline import tell_skipped
from openvse.search.provided import SAME_MODEL, SENTENCES
from openvse.settings import settings_of

if TYPE_CHECKING:
    from openvse.cli.progress import Display
    from openvse.indexing.build import IndexReport
    from openvse.indexing.embedding import Sharing
    from openvse.pipeline import Workers, WorkProgress
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
