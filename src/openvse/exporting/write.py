"""A model as a folder that other runtimes and libraries read, compared with the model before it is put into place."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import nn

from openvse import __version__
from openvse.backbones.fine_tuning import without_adapters
from openvse.corpus import Corpus
from openvse.errors import ModelError, install
from openvse.exporting.checking import (
    Deviation,
    Effect,
    check_readers,
    check_side,
    deviation,
    effect_of,
    embed_images,
    examples,
    judge,
    without_warnings,
)
from openvse.exporting.programs import (
    check_tower,
    longest_text,
    program_of,
    quantize,
    traced,
    write_onnx,
)
from openvse.exporting.reading import PROBES, describe_preprocessing, describe_tokenizer
from openvse.files import given_path, is_free, replacing_files
from openvse.model.base import Model
from openvse.model.folder import CARD
from openvse.model.tower import evaluating
from openvse.model.two_tower import TwoTower
from openvse.runtime import OnnxModel
from openvse.runtime.arrays import Kind
from openvse.runtime.description import CLIPS, EXPORT, Description, Side, is_export
from openvse.runtime.model import load_embedder
from openvse.scoring.calibration import CALIBRATION
from openvse.scoring.hubs import BANK
from openvse.similarities import SetMax, Similarity
from openvse.similarities.order import Order
from openvse.similarities.set_max import CSD, ScaledCosine
from openvse.specs.model import TowerSpec

Format: TypeAlias = Literal["onnx", "sentence_transformers"]
MODULES = "modules.json"
"""The file of a ``SentenceTransformer`` that names its parts."""

LONGEST = 200
"""The default of the largest set of stored features, or of tokens of an encoder without a limit of its own."""
_INT8 = "-int8"  # follows the fingerprint of a model whose weights were rounded
_OF_SENTENCES = 1e-5  # the largest difference of a number, where the text tower itself is written
_OF_QUERIES = 1e-5  # the largest distance of an embedding, and so the largest difference of a score


@dataclass(frozen=True)
class Exported:
    """The written export, and its difference from the model.

    Attributes:
        bytes: the size of its files.
        differences: the comparisons before the export was put into its place.
        effect: the change of a search by int8, or None without int8 or without data.
    """

    folder: Path
    format: Format
    bytes: int
    differences: tuple[Deviation, ...]
    effect: Effect | None = None


def export(
    model: Model | str | Path,
    folder: str | Path,
    *,
    format: Format = "onnx",
    int8: bool = False,
    longest: int = LONGEST,
    on: Corpus | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write a model for other runtimes, after a comparison with the model.

    Args:
        model: a model of two towers, or its place, as ``openvse.load`` takes it.
        folder: the folder to write. A complete new export replaces an earlier one in it.
        format: ``onnx`` for ONNX Runtime and others, ``sentence_transformers`` for the text tower as a
            ``SentenceTransformer``.
        int8: whether the weights of the linear layers become 8-bit integers (only onnx).
        longest: the largest set of stored features, or of tokens of an encoder that reads any number.
        on: images with captions, to measure the effect of int8 on retrieval.
        progress: a function called with the finished steps and their number.

    Raises:
        ModelError: no export in this format can give the model's results, or the written one does not. Nothing is put
            into place then.

    Examples:
        >>> openvse.export("runs/mine", "exported")  # doctest: +SKIP
    """
    target = given_path(folder, "the folder of the export")
    if isinstance(model, str | Path):
        model = load_embedder(str(model))
    if not isinstance(model, TwoTower):
        purpose = getattr(model, "purpose", "is exported already")
        raise ModelError(f"a model that {purpose} has no export: export a model that {TwoTower.purpose}")
    _check_target(target, format)
    if int8 and format != "onnx":
        raise ModelError(
            f"int8 is only for the format onnx, but the format is {format}: leave one of them out"
        )
    if longest < 1:
        raise ModelError(f"longest is {longest}: give the largest number of features of an image, 1 or more")
    plain = without_adapters(model)
    with evaluating(plain), torch.no_grad():
        if format == "sentence_transformers":
            measured = _export_sentences(plain, target, progress)
            return Exported(target, format, _size(target), (measured,))
        return _export_programs(plain, target, int8, longest, on, progress)


def export_for_queries(
    model: TwoTower, folder: Path, *, images: bool, progress: Callable[[int, int], None] | None = None
) -> None:
    """Write the text tower, and the image tower if wanted. Scores of queries differ by at most 1e-5."""
    plain = without_adapters(model)
    if plain.device.type != "cpu":
        plain = copy.deepcopy(plain).cpu()
    with evaluating(plain), torch.no_grad():
        _export_programs(plain, folder, False, LONGEST, None, progress, images=images, farthest=_OF_QUERIES)


def _steps(total: int, progress: Callable[[int, int], None] | None) -> Callable[[], None]:
    """Return a function that reports one more finished step. The first report is made here."""
    numbers, tell = iter(range(total + 1)), progress or (lambda done, total: None)
    tell(next(numbers), total)
    return lambda: tell(next(numbers), total)


def _export_sentences(
    model: TwoTower, folder: Path, progress: Callable[[int, int], None] | None
) -> Deviation:
    """Write the text tower as a folder that ``SentenceTransformer(folder, trust_remote_code=True)`` loads."""
    if model.text.aggregator.yields_gaussian:
        raise ModelError(
            "the embeddings of this model are distributions, but sentence-transformers compares embeddings by their "
            "cosines: export it as onnx"
        )
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ModelError(
            f"the format sentence_transformers needs the library: {install('sentence-transformers')}"
        ) from error
    from openvse.sentences.modules import TextTower

    spec = model.spec.model_dump(mode="json")
    tower, step = copy.deepcopy(model.text).cpu(), _steps(2, progress)
    with replacing_files(folder, MODULES) as partial:
        module = TextTower(tower, TowerSpec.model_validate(spec["text"]), int(spec["embed_dim"]))
        SentenceTransformer(modules=[module], device="cpu").save(str(partial))
        step()
        loaded: Any = SentenceTransformer(str(partial), trust_remote_code=True, device="cpu")
        sentences = list(PROBES[:-1])
        with without_warnings():
            ours = model.encode_text(sentences).vectors.numpy()
        theirs = np.asarray(loaded.encode(sentences, show_progress_bar=False))[:, None]
        measured = deviation("sentences", ours, theirs)
        judge(measured, "the written SentenceTransformer", tolerance=_OF_SENTENCES)
        step()
    return measured


def _export_programs(
    model: TwoTower,
    target: Path,
    int8: bool,
    longest: int,
    on: Corpus | None,
    progress: Callable[[int, int], None] | None,
    *,
    images: bool = True,
    farthest: float = math.inf,
) -> Exported:
    kind, sides = _kind(model.similarity), ("image", "text") if images else ("text",)
    for side in sides:
        check_tower(getattr(model, side), side)
    if images and model.reads_videos:
        raise ModelError("a model that reads clips has no export: export a model that reads images")
    effect, step = None, _steps(2 * len(sides) + int8, progress)
    with replacing_files(target, EXPORT, [CALIBRATION, BANK, CARD]) as partial:
        text = _write_text(model, partial, longest)
        step()
        image = _left_out(model)
        if images:
            image = _write_image(model, partial, longest)
            step()
        description = _describe(model, kind, image, text)
        if model.calibration is not None:
            (partial / CALIBRATION).write_text(model.calibration.to_json(), encoding="utf-8")
        if math.isinf(farthest):  # an index has the bank beside its towers, and says itself what they are
            if model.query_bank is not None:
                model.query_bank.write(partial)
            (partial / CARD).write_text(_card(model, target.name), encoding="utf-8")
        (partial / EXPORT).write_text(description.to_json(), encoding="utf-8")
        deviations = []
        for side in sides:
            deviations.append(check_side(model, partial, description, side))
            step()
        deviations += check_readers(model, partial)
        if (distance := max(each.distance for each in deviations)) > farthest:
            raise ModelError(f"scores would differ from the model's by up to {distance:.1e}")
        if int8:
            description, effect, deviations = _round(model, partial, description, on)
            step()
        description = replace(description, checked={each.what: each.largest for each in deviations})
        (partial / EXPORT).write_text(description.to_json(), encoding="utf-8")
    return Exported(target, "onnx", _size(target), tuple(deviations), effect)


def _card(model: TwoTower, name: str) -> str:
    """Return the README for whoever gets the folder."""
    data = model.provenance.get("data")
    trained = f", trained on {data['name']}" if isinstance(data, Mapping) and "name" in data else ""
    reads = (
        [
            f"openvse index {name} photos --out index",
            'openvse search index "a dog on a beach"',
            "openvse serve index",
        ]
        if model.reads_images
        else ["# this model reads stored features: OnnxModel.encode_features"]
    )
    commands = "\n".join(["pip install .  # in a clone of openvse", *reads])
    return (
        f"# {name}\n\nA model that compares images and sentences{trained}. openvse {__version__} exported it for ONNX "
        f"Runtime, so nothing here needs PyTorch.\n\n```bash\n{commands}\n```\n\n```python\nimport openvse\n\n"
        f'model = openvse.open("{name}")\nprint(model.encode(["a dog", "a beach"]).shape)\n```\n\n'
        f"`export.json` describes the programs, their inputs and what was compared with the model.\n"
    )


def _round(
    model: TwoTower, folder: Path, description: Description, on: Corpus | None
) -> tuple[Description, Effect | None, list[Deviation]]:
    """Round the weights of the programs in a folder to int8, and measure the effect."""
    exact = OnnxModel(folder)
    images, on = (None, None) if on is None else embed_images(exact, on)
    texts = None if on is None else exact.encode_text(on.captions)
    for side in (description.image, description.text):
        quantize(folder / side.file)
    rounded = replace(description, precision="int8", fingerprint=f"{description.fingerprint}{_INT8}")
    (folder / EXPORT).write_text(rounded.to_json(), encoding="utf-8")
    for name in (CALIBRATION, BANK):  # they are those of other scores
        (folder / name).unlink(missing_ok=True)
    deviations = [check_side(model, folder, rounded, side) for side in ("image", "text")]
    if on is None or images is None or texts is None:
        return rounded, None, deviations
    return rounded, effect_of(OnnxModel(folder), images, texts, on), deviations


def _write_text(model: TwoTower, folder: Path, longest: int) -> Side:
    encoder = model.text.encoder
    most = longest_text(encoder, longest)
    side = Side("text.onnx", ("tokens", "mask"), most, None, describe_tokenizer(encoder, folder))
    _write(model.text, side, folder, "text", most)
    return side


def _write_image(model: TwoTower, folder: Path, longest: int) -> Side:
    encoder = model.image.encoder
    if isinstance(encoder.backbone.net, nn.Identity):  # no network, so it reads stored features
        side = Side("image.onnx", ("features", "mask"), longest, encoder.feature_dim, None)
        most = longest
    else:
        reading = vars(describe_preprocessing(encoder.backbone))
        side = Side("image.onnx", ("pixels",), None, None, reading)
        (pixels,) = examples(model.image, side, [1])
        most = encoder(pixels).mask.shape[1]
    _write(model.image, side, folder, "image", most)
    return side


def _left_out(model: TwoTower) -> Side:
    """Return the description of the image side if its program is not written."""
    reads_features = isinstance(model.image.encoder.backbone.net, nn.Identity)
    reads = CLIPS if model.reads_videos else ("pixels",)
    return Side("", ("features", "mask") if reads_features else reads, None, None, None)


def _write(tower: Any, side: Side, folder: Path, name: str, longest: int) -> None:
    """Write the program of a tower."""
    example = examples(tower, side, [min(3, side.longest or 3), 1])[0]
    inputs = [example.values] if example.mask is None else [example.values, example.mask]
    made = traced(program_of(tower, longest), inputs, side.longest, name)
    write_onnx(made, side.inputs, folder / side.file, name)


def _describe(model: TwoTower, kind: Kind, image: Side, text: Side) -> Description:
    counts, dim = [], 0
    for tower, side in ((model.image, image), (model.text, text)):
        count = 0
        if side.file:
            (example,) = examples(tower, side, [1])
            _, count, dim = tower(example).vectors.shape
        counts.append(count)
    return Description(
        precision="float32",
        fingerprint=model.fingerprint,
        of_model=model.fingerprint,
        num_embeddings=(counts[0], counts[1]),
        dim=dim,
        score=kind,
        image=image,
        text=text,
        checked={},
        openvse=__version__,
        provenance=model.provenance,
    )


def _kind(similarity: Similarity) -> Kind:
    """Return the runtime's comparison of two embeddings."""
    if type(similarity) in (SetMax, ScaledCosine):
        return "inner"
    if type(similarity) is CSD:
        return "csd"
    if type(similarity) is Order:
        return "order"
    raise ModelError(
        f"a runtime does not support the scores of the similarity {type(similarity).__name__}: export a model with "
        f"set_max, scaled_cosine, csd or order"
    )


def _check_target(folder: Path, format: Format) -> None:
    """Raise ModelError if the folder holds something else."""
    if format not in get_args(Format):
        raise ModelError(f"the format is {format!r}: allowed are {' and '.join(get_args(Format))}")
    if folder.is_file():
        raise ModelError(f"{folder} is a file: name a folder for the export")
    named = MODULES if format == "sentence_transformers" else EXPORT
    if not is_free(folder, named) and not (folder / named).is_file() and not is_export(folder):
        raise ModelError(
            f"{folder} holds files that are no export: name an empty folder, or one of an earlier export"
        )


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
