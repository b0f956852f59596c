"""``openvse index``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from openvse.cli.app import app
from openvse.cli.options import (
    Cluster,
    Device,
    Engine,
    Json,
    ModelName,
    Processes,
    ThreadsOfEach,
    chosen_workers,
    read_query_bank,
)
from openvse.cli.stopping import going_on
from openvse.halves import training_module

if TYPE_CHECKING:
    from openvse.cli.embedders import Embedder
    from openvse.index import IndexReport
    from openvse.index.embedding import Sharing
    from openvse.pipeline import Workers
    from openvse.stores.following import EngineChange

Folders = Annotated[
    list[Path],
    typer.Argument(
        metavar="FOLDER...",
        help="Folders of images, at any depth; or a text file with a sentence a line, to find captions by images.",
    ),
]
Out = Annotated[Path, typer.Option(help="The index folder.")]
Add = Annotated[bool, typer.Option("--add", help="Add the folders to those that the index already holds.")]
Forget = Annotated[
    list[Path] | None,
    typer.Option(help="A folder to remove from the index, with its items; may be given several times."),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        help="A pattern of files or folders to skip, as in .gitignore; may be given several times, and is remembered. "
        "So is a file .openvseignore in a folder."
    ),
]
FollowLinks = Annotated[bool | None, typer.Option(help="Enter links to folders too; it is remembered.")]
SegmentSeconds = Annotated[
    float | None,
    typer.Option(
        help="Split clips into segments of N seconds, which are indexed separately; 0 keeps them whole. Default: as "
        "before. A model of images sees the middle frame of each segment."
    ),
]
NumberFormat = Annotated[
    Literal["float32", "float16"] | None,
    typer.Option(
        help="How a number is stored: float16 halves disk and memory. By default that of the index, and float32 for a "
        "new one."
    ),
]
Features = Annotated[
    Path | None,
    typer.Option(
        help="A feature store, read instead of images that have not changed since; by default that of the model's run."
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an index of another model or of another folder.")
]
Hubs: TypeAlias = Mapping[str, int | float] | None
Bank = Annotated[
    str,
    typer.Option(
        "--query-bank",
        metavar="FILE",
        help="Sentences that show which images are hubs, which then no longer come first for everything: a file with "
        "one a line, a table of captions, or data such as flickr8k:/data/f8k, whose training captions are taken. "
        "FILE,beta=N: see 'openvse evaluate --query-bank' (default: 20). The index keeps them; none takes them away.",
    ),
]
Compact = Annotated[
    bool, typer.Option("--compact", help="Rewrite the files without what is no longer needed in them.")
]
TowersBeside = Annotated[
    Literal["text", "both", "none"] | None,
    typer.Option(
        "--towers",
        envvar="OPENVSE_TOWERS",
        help="Towers to write beside the index, so that searches start without PyTorch: text (the default of a new "
        "index), both (for queries by images, too) or none. Default: as before.",
    ),
]
CheckAll = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Compare the whole index with its checksums, before and after; what is damaged is embedded again. Also "
        "report the recall of an approximate engine.",
    ),
]


@app.command(rich_help_panel="Search")
@going_on("what was embedded is kept; run the same command again to continue")
def index(
    model: ModelName,
    folders: Folders,
    out: Out = Path("index"),
    add: Add = False,
    forget: Forget = None,
    ignore: Ignore = None,
    follow_links: FollowLinks = None,
    segment_seconds: SegmentSeconds = None,
    batch_size: Annotated[int, typer.Option(min=1, help="How many images are embedded at a time.")] = 64,
    dtype: NumberFormat = None,
    features: Features = None,
    query_bank: Bank = "",
    overwrite: Overwrite = False,
    compact: Compact = False,
    engine: Engine = None,
    towers: TowersBeside = None,
    check: CheckAll = False,
    processes: Processes = 0,
    cluster: Cluster = None,
    device: Device = "cpu",
    threads: ThreadsOfEach = None,
    as_json: Json = False,
) -> None:
    """Embed folders of images for search; a later run embeds only what changed, and goes on after a stop."""
    from openvse.cli.embedders import load_embedder
    from openvse.cli.progress import bar, counted
    from openvse.index import Index, build_index, place_of
    from openvse.stores.following import plan_engine

    workers, asked = chosen_workers(processes, cluster, threads, device), bank_sentences(query_bank)
    loaded = load_embedder(model, device="cpu" if workers else device, threads=threads)
    refuse_clips(loaded, segment_seconds)
    change = plan_engine(out, engine, model=loaded)
    forget_roots(out, forget or ())
    with bar() as progress:
        show = counted(progress, "indexing")
        report = build_index(
            loaded,
            folders,
            out,
            batch_size=batch_size,
            dtype=dtype,
            overwrite=overwrite,
            add=add,
            ignore=ignore,
            follow_links=follow_links,
            segment_seconds=segment_seconds,
            check=check,
            compact=compact,
            stored=stored_features(loaded, model, features),
            model_place=place_of(model, out),
            sharing=None if workers is None else sharing_of(loaded, model, workers),
            progress=lambda state: show(state.done, state.total, state.per_s),
        )
    warn_of(report)
    if check:
        Index.open(out, loaded.fingerprint, check=True)
    hubs, searched = bring_hubs(out, loaded, *asked), follow(out, change, loaded, check=check)
    print_report(out, report, searched, bring_towers(out, loaded, towers), hubs, as_json=as_json)


def bank_sentences(value: str) -> tuple[list[str] | None, float]:
    """Return sentences (None keeps the old ones) and beta; raise OpenVSEError if the bank holds no sentence."""
    from openvse.scoring.hubs import BETA

    name, beta = read_query_bank(value)
    if name in ("", "none"):
        return ([] if name else None), BETA
    if Path(name).is_file():
        listing = training_module("openvse.encoding.listing")
        return [str(each.source) for each in listing.list_records(name, kind="texts").records], beta or BETA
    open_corpus = training_module("openvse.datasets").open_corpus
    captions = open_corpus(name, require_images=False, questions=False).split("train").captions
    return [" ".join(text.split()) for text in captions], beta or BETA


def bring_hubs(out: Path, model: Embedder, sentences: Sequence[str] | None, beta: float) -> Hubs:
    """Give an index a query bank, or bring its own up to date, and return its numbers; None where it has none."""
    from openvse.cli.progress import bar, timed
    from openvse.search.bank import bring_bank

    with bar() as progress:
        shown = timed(progress, "embedding the query bank", "sentences")
        return bring_bank(out, model, sentences, beta, progress=shown)


@dataclass(frozen=True)
class Searched:
    """How the engine of an index was updated.

    Attributes:
        name: of the engine.
        put: items that were new to it, or had changed.
        removed: items that were gone.
        recall: the share of the 10 best items that it finds; None where nobody asked, and for the exact engine.
    """

    name: str
    put: int = 0
    removed: int = 0
    recall: float | None = None


def follow(out: Path, change: EngineChange, model: Embedder, *, check: bool) -> Searched:
    """Bring the planned engine of an index up to date in place of the one before, and measure its recall if asked."""
    from openvse.cli.progress import bar, timed
    from openvse.index import Index
    from openvse.search import ExactSearch, measured_recall
    from openvse.search.catalogue import open_searcher
    from openvse.stores.following import update_engine

    name = change.wanted.name
    change.apply(out)
    with bar(shown=name != "exact") as progress:
        report = update_engine(out, url=change.url, progress=timed(progress, f"engine {name}"))
    recall = None
    if check and name != "exact":
        index = Index.open(out)
        searcher = open_searcher(index, ExactSearch(index.segments), engine=change.url, model=model)
        recall = measured_recall(searcher, index)
        searcher.close()
    return Searched(name, report.put, report.removed, recall)


def bring_towers(out: Path, model: Embedder, wanted: Literal["text", "both", "none"] | None) -> Any:
    """Write the towers of the model beside the index, which is searchable already; None for an exported model."""
    from openvse.cli.progress import detail, note, warn
    from openvse.errors import DiskError, IndexFormatError
    from openvse.runtime import OnnxModel
    from openvse.runtime.beside import remove_other_towers

    if isinstance(model, OnnxModel):
        detail(f"searches of {out} take the exported model itself")
        remove_other_towers(out, model.fingerprint)
        return None
    write_towers = training_module("openvse.exporting.beside").write_towers

    def begun() -> None:
        note(f"{out} can be searched; writing towers beside it, so that searches start without PyTorch")

    try:
        beside = write_towers(model, out, wanted, on_write=begun)
    except (DiskError, IndexFormatError) as error:
        warn(f"searches load PyTorch until 'openvse index' has written the towers of the model: {error}")
        return None
    for side, reason in beside.left_out.items():
        what = "load PyTorch" if side == "text" else "by images load PyTorch"
        (note if beside.is_new else detail)(f"searches of {out} {what}: {reason}")
    return beside


def refuse_clips(model: Embedder, segment_seconds: float | None) -> None:
    """Raise ModelError where an exported model, which reads no clips, is to cut some into segments."""
    from openvse.errors import ModelError
    from openvse.runtime import OnnxModel

    if isinstance(model, OnnxModel) and segment_seconds:
        raise ModelError(
            "an exported model reads no clips: leave out --segment-seconds, or name the model folder"
        )


def forget_roots(out: Path, folders: Sequence[Path]) -> None:
    """Remove folders and their images from an index."""
    from openvse.index import forget_root

    for folder in folders:
        forget_root(out, folder)


def sharing_of(model: Embedder, source: str, workers: Workers) -> Sharing:
    """Return the processes that embed; an exported model embeds in one."""
    from openvse.errors import ModelError
    from openvse.runtime import OnnxModel

    if isinstance(model, OnnxModel):
        raise ModelError(
            "an exported model embeds in one process: leave out --processes, or name the model folder"
        )
    from openvse.index.embedding import Sharing

    load_same = training_module("openvse.tasks.load").load_same
    return Sharing(workers, partial(load_same, source, model.fingerprint, workers.device))


def stored_features(model: Embedder, source: str, features: Path | None) -> Any:
    """Return the stored features that may stand for images; an exported model reads none."""
    from openvse.errors import ModelError
    from openvse.runtime import OnnxModel

    if not isinstance(model, OnnxModel):
        return training_module("openvse.features").find_stored_features(model, source, features)
    if features is not None:
        raise ModelError(
            "an exported model reads no feature store: leave out --features, or name the model folder"
        )
    return None


def warn_of(report: IndexReport) -> None:
    """Warn of what could not be used or looked at."""
    from openvse.cli.progress import warn
    from openvse.media.names import escaped
    from openvse.pipeline import tell_skipped

    tell_skipped(report.failed)
    for path, reason in report.unreached:
        warn(f"{escaped(path)}: {reason}")
    for problem in report.metadata_problems:
        warn(problem)
    if report.left_out:
        warn(report.left_out.describe())


def print_report(
    out: Path, report: IndexReport, searched: Searched, towers: Any, hubs: Hubs, *, as_json: bool
) -> None:
    """Print what indexing did, as a line or as JSON."""
    from openvse.cli.json_output import print_json

    if as_json:
        counts = {
            "images": report.count,
            "unchanged": report.reused,
            "resumed": report.resumed,
            "stored": report.stored,
            "recognised": report.recognised,
            "segments": report.segments,
            "removed": report.removed,
            "compacted": report.compacted,
            "unreadable": len(report.failed),
        }
        failed, unchanged = (
            [{"path": str(path), "reason": reason} for path, reason in paths]
            for paths in (report.failed, report.unreached)
        )
        left_out = {kind: [str(path) for path in paths] for kind, paths in report.left_out.files.items()}
        print_json(
            "index",
            {
                "index": str(out),
                **counts,
                "failed": failed,
                "kept": unchanged,
                "left_out": left_out,
                "engine": asdict(searched),
                "towers": list(towers.sides) if towers else [],
                "query_bank": hubs,
            },
        )
        return
    more = {
        "segments of clips": report.segments,
        "kept by the stopped run": report.resumed,
        "from stored features": report.stored,
        "moved or copied": report.recognised,
        "removed": report.removed,
    }
    parts = [f"{report.reused} unchanged", *(f"{count} {what}" for what, count in more.items() if count)]
    typer.echo(f"{out}: {report.count} {report.holds} ({', '.join(parts)}, {len(report.failed)} unreadable)")
    if report.compacted:
        typer.echo(f"{report.compacted} rows that were no longer needed are gone from its files")
    if hubs is not None:
        typer.echo(f"query bank: {hubs['sentences']:,} sentences, beta {hubs['beta']:g}")
    if searched.name != "exact":
        typer.echo(f"engine {searched.name}: {searched.put} items put, {searched.removed} removed")
    if searched.recall is not None:
        typer.echo(
            f"recall@10 of {searched.name} against the exact engine: {searched.recall:.3f} (100 queries)"
        )
