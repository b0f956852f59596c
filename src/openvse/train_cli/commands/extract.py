"""``openvse extract``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openvse.cli.app import app
from openvse.cli.options import FeatureStorePath, RunSettings, Stored, argument, option, with_settings
from openvse.cli.progress import bar, counted, going_on, voice, warn
from openvse.errors import DataError, ModelError
from openvse.pipeline import tell_skipped
from openvse.train_cli.completion import complete_encoder

if TYPE_CHECKING:
    from openvse.features.extract import ExtractionReport
    from openvse.features.store import StoreDtype
    from openvse.pipeline import Workers

IMAGES_AT_ONCE, TEXTS_AT_ONCE = 32, 128


@dataclass(frozen=True)
class _Extraction:
    """An extraction: ``run`` extracts to a store, with the options that images and texts share."""

    fingerprint: str | None
    run: Callable[..., ExtractionReport]
    batch_size: int
    problems: Sequence[str]
    unit: str


@app.command(rich_help_panel="Data")
@with_settings
@going_on("the extracted features are in the store: run the same command again to continue")
def extract(
    encoder: Annotated[
        str,
        argument(
            "The feature extractor: a backbone for images (efficientnet_lite0, transformers_vision, ..., "
            "frames for clips), or transformers_text for captions. 'openvse list parts' lists all.",
            complete=complete_encoder,
        ),
    ],
    data: Annotated[str, argument("The data: a folder, a table, or NAME:ROOT such as hf:FOLDER.")],
    store: FeatureStorePath,
    options: Annotated[
        list[str] | None,
        argument(
            "Options of the encoder, each as KEY=VALUE, such as model=facebook/dinov2-small or backbone.image_size=128."
        ),
    ] = None,
    *,
    batch_size: Annotated[
        int | None, option("Number of items in a batch. Default: 32 images or 128 texts.", least=1)
    ] = None,
    workers: Annotated[
        int | None, option("Number of threads that decode images, for a GPU processes. Default: by the cores.", least=1)
    ] = None,
    dtype: Stored = "float16",
    check: Annotated[bool, option("First compare an existing store with its checksums.", "--check")] = False,
    run: RunSettings,
) -> None:
    """Store the local features of images or the token states of captions. A second run adds only new ones."""
    from openvse.encoders import TEXT_ENCODERS
    from openvse.features.store import FeatureStore

    shared = run.workers()
    tree = _tree(options or [])
    of_texts = encoder in TEXT_ENCODERS
    chosen = _of_texts(encoder, data, tree) if of_texts else _of_images(encoder, data, tree, workers)
    if check and store.is_dir():
        FeatureStore(store, chosen.fingerprint, check=True)
    report = _run(
        chosen, store, batch_size=batch_size or chosen.batch_size, dtype=dtype, device=run.device, workers=shared
    )
    were_there = f"{report.skipped_existing} were there"
    if not of_texts:
        were_there += f", {len(report.failed)} unreadable"
    typer.echo(f"{store}: {report.done} new, {were_there}, {report.images_per_s:.1f} {report.unit}/s")
    if report.failed and not report.done and not report.skipped_existing:
        raise DataError(f"{data}: no image can be read: check the files named above")


def _run(
    chosen: _Extraction, store: Path, *, batch_size: int, dtype: StoreDtype, device: str, workers: Workers | None
) -> ExtractionReport:
    """Extract with a bar, and warn of faults in the data."""
    with bar() as progress:
        show = counted(progress, "extracting", chosen.unit)
        report = chosen.run(
            store,
            batch_size=batch_size,
            dtype=dtype,
            device=device,
            workers=workers,
            progress=lambda state: show(state.done, state.total, state.per_s),
        )
    for problem in filter(None, (*chosen.problems, report.stale)):
        warn(problem)
    tell_skipped(report.failed)
    return report


def _tree(options: Sequence[str]) -> dict[str, Any]:
    """Return arguments of the form KEY=VALUE as the options of a part."""
    from openvse.specs.load import apply_override, parse_override

    given: dict[str, Any] = {}
    for path, value in map(parse_override, options):
        given = apply_override(given, path, value)
    return given


def _of_images(name: str, data: str, options: Mapping[str, Any], threads: int | None) -> _Extraction:
    from openvse.assembly.parts import build_part
    from openvse.backbones import BACKBONES
    from openvse.corpus.corpus import long_captions
    from openvse.datasets import open_corpus
    from openvse.features.extract import extract_features
    from openvse.specs.model import Part

    backbone = build_part(BACKBONES, Part(**{**options, "name": name}), name, {"assets": None})
    corpus = open_corpus(data, allow_outside=voice.allow_outside)
    images = list(zip(corpus.image_ids, corpus.image_paths, strict=True))
    run = partial(extract_features, backbone, images, num_workers=threads or None)
    problems = [*corpus.problems, *filter(None, [long_captions(corpus.captions)])]
    return _Extraction(backbone.fingerprint, run, IMAGES_AT_ONCE, problems, "images")


def _of_texts(name: str, data: str, options: Mapping[str, Any]) -> _Extraction:
    from openvse.assembly.parts import build_part, parameters
    from openvse.datasets import open_corpus
    from openvse.encoders import TEXT_ENCODERS
    from openvse.encoders.transformers_text import TransformersText
    from openvse.features.extract import extract_text_features
    from openvse.specs.model import Part

    corpus = open_corpus(data, require_images=False, allow_outside=voice.allow_outside)
    # These options only change what training does with the states.
    usual = {"fine_tune": False, "size_augmentation": "none"}
    usual = {key: value for key, value in usual.items() if key in parameters(TEXT_ENCODERS.get(name))}
    context = {"embed_dim": 2, "captions": corpus.captions, "assets": None}
    encoder = build_part(TEXT_ENCODERS, Part(**{**usual, **options, "name": name}), name, context)
    if not isinstance(encoder, TransformersText):
        raise ModelError(f"{name} has no text model whose states can be stored: extract with transformers_text")
    run = partial(extract_text_features, encoder, corpus.captions)
    return _Extraction(encoder.fingerprint, run, TEXTS_AT_ONCE, corpus.problems, "texts")
