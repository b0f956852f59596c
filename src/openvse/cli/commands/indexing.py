"""``openvse index``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openvse.cli.app import app
from openvse.cli.index_options import (
    Add,
    CheckAll,
    Compact,
    EngineOption,
    EngineUrl,
    Features,
    Folders,
    Forget,
    Ignore,
    IndexModel,
    NumberFormat,
    Out,
    Overwrite,
    SegmentSeconds,
)
from openvse.cli.options import Device, Json, Quiet
from openvse.cli.stopping import going_on
from openvse.cli.worker_options import Cluster, Processes, ThreadsOfEach, chosen_workers
from openvse.errors import OpenVSEError

if TYPE_CHECKING:
    from openvse.cli.embedders import Embedder
    from openvse.index.embedding import Sharing
    from openvse.pipeline import Workers
    from openvse.search import EngineChoice, IndexReport, StoredFeatures


@app.command()
@going_on("what was embedded is kept; run the same command again to continue")
def index(
    model: IndexModel,
    folders: Folders,
    out: Out = Path("index"),
    add: Add = False,
    forget: Forget = None,
    ignore: Ignore = None,
    segment_seconds: SegmentSeconds = None,
    batch_size: Annotated[int, typer.Option(min=1, help="How many images are embedded at a time.")] = 64,
    dtype: NumberFormat = None,
    features: Features = None,
    overwrite: Overwrite = False,
    compact: Compact = False,
    engine: EngineOption = None,
    engine_url: EngineUrl = None,
    check: CheckAll = False,
    processes: Processes = 0,
    cluster: Cluster = None,
    device: Device = "cpu",
    threads: ThreadsOfEach = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Embed folders of images for search; a later run embeds only what changed, and goes on after a stop."""
    from openvse.cli.embedders import load_embedder
    from openvse.cli.progress import bar, counted
    from openvse.search import Index, build_index, place_of

    workers = chosen_workers(processes, cluster, threads, device)
    loaded = load_embedder(model, device="cpu" if workers else device, threads=threads)
    exported = is_export(loaded, engine, segment_seconds)
    choice = None if exported else check_engine(out, engine, engine_url, loaded)
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
    searched = Searched("exact")
    if choice is not None and (report.engine or any(each.name != "exact" for each in choice)):
        searched = bring_engine(out, choice, engine_url, loaded, check=check)
    print_report(out, report, searched, as_json=as_json)


@dataclass(frozen=True)
class Searched:
    """What became of the engine of an index.

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


def check_engine(
    out: Path, engine: str | None, url: str | None, model: object
) -> tuple[EngineChoice, EngineChoice]:
    """Return the engine that is wanted and the one that the index has, before anything is embedded.

    Raises:
        EngineError: there is no such engine, it needs another URL, or it cannot serve the model.
    """
    from openvse.index.manifest import MANIFEST, read_manifest
    from openvse.search import EngineChoice
    from openvse.search.engines import check_served

    known = EngineChoice()
    if (out / MANIFEST).is_file():
        with suppress(OpenVSEError):  # indexing says what is wrong with it, or makes it anew
            known = EngineChoice.of(read_manifest(out).engine)
    if engine is None and url is not None and known.name == "exact":
        raise OpenVSEError(
            "--engine-url is the address of an engine: give --engine qdrant or --engine pgvector, too"
        )
    wanted = (
        known
        if engine is None
        else EngineChoice.new(engine, url or (known.url if known.name == engine else None))
    )
    if wanted.name != "exact":
        check_served(wanted.name, model)
    return wanted, known


def bring_engine(
    out: Path, choice: tuple[EngineChoice, EngineChoice], url: str | None, model: object, *, check: bool
) -> Searched:
    """Bring the wanted engine of an index up to date in place of the one before, and measure its recall if asked."""
    from openvse.cli.progress import bar, counted, warn
    from openvse.errors import EngineBusyError
    from openvse.search import ExactBackend, Index, choose_engine, measured_recall, update_engine
    from openvse.search.engines import drop_replaced, open_engine

    wanted, known = choice
    drop_replaced(out, known)
    if wanted.name == "exact":
        choose_engine(out, "exact")
        return Searched("exact")
    choose_engine(out, wanted.name, url or wanted.url, model=model)
    started = time.perf_counter()
    try:
        with bar() as progress:
            show = counted(progress, f"engine {wanted.name}")
            report = update_engine(
                out,
                url=url,
                progress=lambda done, total: show(done, total, done / (time.perf_counter() - started)),
            )
    except EngineBusyError as error:
        warn(f"{error}; the index is up to date, and what the engine lacks is searched exactly")
        return Searched(wanted.name)
    recall = None
    if check:
        index = Index.open(out)
        engine = open_engine(index, ExactBackend(index.segments), url=url, model=model)
        recall = measured_recall(engine, index)
    return Searched(wanted.name, report.put, report.removed, recall)


def is_export(model: Embedder, engine: str | None, segment_seconds: float | None) -> bool:
    """Return whether a model is an exported one, which is searched exactly and reads images; refuse all else for it."""
    from openvse.errors import ModelError
    from openvse.runtime import OnnxModel

    if isinstance(model, OnnxModel) and engine not in (None, "exact"):
        raise ModelError(
            f"an exported model is searched exactly, and not with the engine {engine}: leave out --engine, or name the "
            f"model folder"
        )
    if isinstance(model, OnnxModel) and segment_seconds:
        raise ModelError(
            "an exported model reads no clips: leave out --segment-seconds, or name the model folder"
        )
    return isinstance(model, OnnxModel)


def forget_roots(out: Path, folders: Sequence[Path]) -> None:
    """Remove folders and their images from an index."""
    from openvse.search import forget_root

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
    from openvse.tasks.load import load_same

    return Sharing(workers, partial(load_same, source, model.fingerprint, workers.device))


def stored_features(model: Embedder, source: str, features: Path | None) -> StoredFeatures | None:
    """Return the stored features that may stand for images; an exported model reads none."""
    from openvse.errors import ModelError
    from openvse.runtime import OnnxModel

    if not isinstance(model, OnnxModel):
        from openvse.search import find_stored_features

        return find_stored_features(model, source, features)
    if features is not None:
        raise ModelError(
            "an exported model reads no feature store: leave out --features, or name the model folder"
        )
    return None


def warn_of(report: IndexReport) -> None:
    """Warn of what could not be used or looked at."""
    from openvse.cli.progress import warn
    from openvse.cli.search_output import warn_of_skipped
    from openvse.media.names import escaped

    warn_of_skipped(report.failed)
    for path, reason in report.kept:
        warn(f"{escaped(path)}: {reason}")
    for path, lines in report.bad_metadata:
        first = f"{len(lines)} lines" if len(lines) > 1 else "a line"
        warn(f"{escaped(path)}: {first} could not be understood (first: line {lines[0]}), and says nothing")
    if report.left_out:
        warn(report.left_out.describe())


def print_report(out: Path, report: IndexReport, searched: Searched, *, as_json: bool) -> None:
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
        failed, kept = (
            [{"path": str(path), "reason": reason} for path, reason in paths]
            for paths in (report.failed, report.kept)
        )
        left_out = {kind: [str(path) for path in paths] for kind, paths in report.left_out.files.items()}
        print_json(
            "index",
            {
                "index": str(out),
                **counts,
                "failed": failed,
                "kept": kept,
                "left_out": left_out,
                "engine": asdict(searched),
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
    if searched.name != "exact":
        typer.echo(f"engine {searched.name}: {searched.put} items put, {searched.removed} removed")
    if searched.recall is not None:
        typer.echo(
            f"recall@10 of {searched.name} against the exact engine: {searched.recall:.3f} (100 queries)"
        )
