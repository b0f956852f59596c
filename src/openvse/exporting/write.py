"""A model as a folder that other runtimes and libraries read, compared with the model before it is put into place.

Its towers become programs in ONNX, also with weights in int8. A program takes batches and sets of any size. It is one
module for each side, with tensors as input and output. Where values of a batch would decide a shape, a part has a
second way under ``kernels.is_traced()``: a GRU is a loop over its steps, and GPO a table by set size. ``write_towers``
puts the towers beside an index, once for each model (see ``runtime.beside``).
"""

from __future__ import annotations

import copy
import json
import logging
import math
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse import __version__
from openvse.aggregators import GPO
from openvse.aggregators.learned import AdPool
from openvse.aggregators.simple import Aggregator, RankedPooling
from openvse.backbones.fine_tuning import without_adapters
from openvse.corpus import Corpus
from openvse.errors import IndexFormatError, ModelError, message_of
from openvse.exporting.checking import (
    OF_WORDS,
    PROBES,
    Deviation,
    Effect,
    check_readers,
    check_side,
    describe_preprocessing,
    describe_tokenizer,
    deviation,
    effect_of,
    embed_images,
    examples,
    judge,
)
from openvse.files import given_path, is_free, locked, made, replacing_files, write_whole
from openvse.kernels import tracing
from openvse.model.base import CARD, Model
from openvse.model.two_tower import Tower, TwoTower, evaluating
from openvse.pipeline import quiet
from openvse.runtime import OnnxModel
from openvse.runtime.arrays import Kind
from openvse.runtime.beside import LEFT_OUT, Towers, left_out_of, remove_other_towers, sound_sides, towers_of
from openvse.runtime.model import CLIPS, EXPORT, Description, Side, is_export, load_embedder
from openvse.scoring.calibration import CALIBRATION
from openvse.scoring.hubs import BANK
from openvse.similarities import SetMax, Similarity
from openvse.similarities.scores import CSD, Order, ScaledCosine
from openvse.specs.model import TowerSpec
from openvse.types import EmbeddingSet, Inputs

_MOST_ITEMS = 1 << 16  # the largest batch of a program
_SINGLE_FILE = 1_900_000_000  # ONNX files hold at most 2 GiB; larger weights go into a file beside it
ModuleT = TypeVar("ModuleT", bound=nn.Module)


class TabledGPO(RankedPooling):
    """A GPO whose coefficients are a table by set size, up to a largest size.

    Its generator reads packed sequences, whose sizes decide the shapes of a program. A table needs one look-up.
    """

    table: Tensor

    def __init__(self, pooling: GPO, longest: int) -> None:
        nn.Module.__init__(self)
        with torch.no_grad():
            rows = [pooling.coefficients(torch.tensor([size]))[0] for size in range(1, longest + 1)]
        table = nn.utils.rnn.pad_sequence(
            [*rows, rows[-1].new_zeros(longest + 1, *rows[-1].shape[1:])], batch_first=True
        )
        # One column is never read: cutting a whole table would be a case of its own.
        self.register_buffer("table", table[:-1])

    def pool_ranked(self, ranked: Float[Tensor, "B L N"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        """Sum the sorted values of each dimension with the coefficients of the item's size."""
        theta = self.table[mask.sum(dim=1) - 1][:, : mask.shape[1]].to(ranked.dtype)
        if theta.dim() == 3:
            return (ranked * theta.transpose(1, 2)).sum(dim=2)
        return torch.einsum("bln,bn->bl", ranked, theta)


class Program(nn.Module):
    """A tower with tensors as input and output."""

    def __init__(self, tower: Tower[Any]) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, values: Tensor, mask: Bool[Tensor, "B N"] | None = None) -> Float[Tensor, "B K D"]:
        """Embed a batch of pixels, or of tokens or features with their mask."""
        embedded: EmbeddingSet = self.tower(Inputs(values, mask))
        return embedded.vectors


def check_tower(tower: Tower[Any], side: str) -> None:
    """Raise ModelError if a program of the tower cannot give the model's embeddings."""
    aggregator: Aggregator = tower.aggregator
    if not aggregator.fixed_k:
        raise ModelError(
            f"the {side} side keeps all of its tokens, for a similarity that compares pairs: export a model whose "
            f"embeddings an index can hold, and keep this one for --rerank"
        )
    for part in tower.modules():
        if isinstance(part, AdPool) and part.count_padding:
            raise ModelError(
                f"the {side} side has adpool with count_padding, whose result depends on the padding of the batch, so "
                f"no program gives the same embeddings: train or convert with count_padding: false"
            )
    if not aggregator.indexable:
        raise ModelError(f"the embeddings of the {side} side depend on more than the item: take another aggregator")


def with_tables(module: ModuleT, longest: int) -> ModuleT:
    """Replace each GPO inside a module by a table of its coefficients, and return the module."""
    for name, child in module.named_children():
        if isinstance(child, GPO):
            setattr(module, name, TabledGPO(child, longest))
        else:
            with_tables(child, longest)
    return module


def traced(program: nn.Module, example: Sequence[Tensor], longest: int | None, side: str) -> Any:
    """Return the program of ``torch.export`` for batches of any size, and sets up to the longest. None fixes them."""
    batch = torch.export.Dim("batch", min=1, max=_MOST_ITEMS)
    if longest is None:
        sizes: tuple[dict[int, Any], ...] = ({0: batch},)
    else:
        shape = {0: batch, 1: torch.export.Dim("size", min=1, max=longest)}
        sizes = (shape, shape)
    try:
        with _silence(), torch.no_grad():
            return torch.export.export(program, tuple(example), dynamic_shapes=sizes, strict=False)
    except Exception as error:  # whatever a part does that a program cannot
        raise ModelError(
            f"the {side} side cannot be exported, because an export does not support one of its parts "
            f"({message_of(error)}): take built-in parts, or report it"
        ) from error


def write_onnx(traced_program: Any, names: Sequence[str], path: Path, side: str) -> None:
    """Write a program as an ONNX file."""
    try:
        with _silence(), torch.no_grad():
            made: Any = torch.onnx.export(
                traced_program, input_names=list(names), output_names=["embeddings"], dynamo=True, verbose=False
            )
    except Exception as error:
        raise ModelError(f"the {side} side has no form in ONNX ({message_of(error)}): report it") from error
    size = sum(weight.numel() * weight.element_size() for weight in traced_program.state_dict.values())
    made.save(str(path), external_data=size > _SINGLE_FILE)


@contextmanager
def _silence() -> Iterator[None]:
    """Keep the exporters' notes to their developers out of the output, and other threads out of the tracing."""
    with tracing(), quiet("torch", "torch.onnx", "onnxscript", "onnx_ir"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def quantize(path: Path) -> None:
    """Round the weights of the matrix products and of the word embeddings of an ONNX file to int8, in its place.

    Activations are rounded while the program runs (dynamic quantisation), so no data is needed. The activations of a
    layer share one scale, so a program has to run on one item at a time, without padding. Convolutions stay in float32,
    because ONNX Runtime has no fast dynamic form of them. The integers are unsigned: products with signed ones overflow
    on processors without VNNI.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    rounded = path.with_suffix(".int8")
    logging.getLogger("root").addFilter(_no_advice)
    try:
        quantize_dynamic(
            str(path),
            str(rounded),
            op_types_to_quantize=["MatMul", "Gemm", "Gather"],
            weight_type=QuantType.QUInt8,
            per_channel=True,
        )
    finally:
        logging.getLogger("root").removeFilter(_no_advice)
    rounded.replace(path)


def _no_advice(record: logging.LogRecord) -> bool:
    """Suppress the quantiser's advice to run its preprocessing first."""
    return "pre-processing" not in record.getMessage()


Format: TypeAlias = Literal["onnx", "sentence_transformers"]
MODULES = "modules.json"
"""The file of a ``SentenceTransformer`` that names its parts."""

LONGEST = 200
"""The default of the largest set of stored features, or of tokens of an encoder without a limit of its own."""
_INT8 = "-int8"  # follows the fingerprint of a model whose weights were rounded
_CLOSEST = 1e-5  # the largest difference of a number of a written text tower, and of a score of a query


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
        ModelError: no export in this format can give the model's results, or the written one does not, and is not kept.

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
        raise ModelError(f"int8 is only for the format onnx, but the format is {format}: leave one of them out")
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
        _export_programs(plain, folder, False, LONGEST, None, progress, images=images, farthest=_CLOSEST)


def _steps(total: int, progress: Callable[[int, int], None] | None) -> Callable[[], None]:
    """Return a function that reports one more finished step. The first report is made here."""
    numbers, tell = iter(range(total + 1)), progress or (lambda done, total: None)
    tell(next(numbers), total)
    return lambda: tell(next(numbers), total)


def _export_sentences(model: TwoTower, folder: Path, progress: Callable[[int, int], None] | None) -> Deviation:
    """Write the text tower as a folder that ``SentenceTransformer(folder, trust_remote_code=True)`` loads."""
    if model.text.aggregator.yields_gaussian:
        raise ModelError("the embeddings are distributions, which sentence-transformers does not compare: export onnx")
    try:
        from sentence_transformers import SentenceTransformer

        from openvse_sentences import TextTower
    except ImportError as error:
        raise ModelError(
            "sentence_transformers needs openvse-sentences: pip install packages/openvse-sentences in a clone"
        ) from error

    spec = model.spec.model_dump(mode="json")
    tower, step = copy.deepcopy(model.text).cpu(), _steps(2, progress)
    with replacing_files(folder, MODULES) as partial:
        module = TextTower(tower, TowerSpec.model_validate(spec["text"]), int(spec["embed_dim"]))
        SentenceTransformer(modules=[module], device="cpu").save(str(partial))
        step()
        loaded: Any = SentenceTransformer(str(partial), trust_remote_code=True, device="cpu")
        sentences = list(PROBES[:-1])
        with quiet(*OF_WORDS):
            ours = model.encode_text(sentences).vectors.numpy()
        theirs = np.asarray(loaded.encode(sentences, show_progress_bar=False))[:, None]
        measured = deviation("sentences", ours, theirs)
        judge(measured, "the written SentenceTransformer", tolerance=_CLOSEST)
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
        [f"openvse index {name} photos --out index", 'openvse search index "a dog on a beach"', "openvse serve index"]
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
    most = longest if encoder.most_tokens is None else encoder.most_tokens
    side = Side("text.onnx", ("tokens", "mask"), most, None, describe_tokenizer(encoder, folder))
    _write(model.text, side, folder, "text", most)
    return side


def _write_image(model: TwoTower, folder: Path, longest: int) -> Side:
    encoder = model.image.encoder
    if isinstance(encoder.backbone.net, nn.Identity):  # no network, so it reads stored features
        side = Side("image.onnx", ("features", "mask"), longest, encoder.feature_dim, None)
        most = longest
    else:
        side = Side("image.onnx", ("pixels",), None, None, vars(describe_preprocessing(encoder.backbone)))
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
    program = with_tables(Program(copy.deepcopy(tower).cpu().eval()), longest).requires_grad_(False)
    write_onnx(traced(program, inputs, side.longest, name), side.inputs, folder / side.file, name)


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
    kinds: dict[type, Kind] = {SetMax: "inner", ScaledCosine: "inner", CSD: "csd", Order: "order"}
    if type(similarity) in kinds:
        return kinds[type(similarity)]
    raise ModelError(f"a runtime has no {type(similarity).__name__}: take set_max, scaled_cosine, csd or order")


def _check_target(folder: Path, format: Format) -> None:
    """Raise ModelError if the folder holds something else."""
    if format not in get_args(Format):
        raise ModelError(f"the format is {format!r}: allowed are {' and '.join(get_args(Format))}")
    if folder.is_file():
        raise ModelError(f"{folder} is a file: name a folder for the export")
    named = MODULES if format == "sentence_transformers" else EXPORT
    if not is_free(folder, named) and not (folder / named).is_file() and not is_export(folder):
        raise ModelError(f"{folder} holds files that are no export: name an empty folder, or one of an earlier export")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


_SIDES: Mapping[str, frozenset[str]] = {
    "text": frozenset({"text"}),
    "both": frozenset({"image", "text"}),
    "none": frozenset(),
}
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def write_towers(
    model: Any, index: str | Path, wanted: str | None = None, *, progress: Callable[[int, int], None] | None = None
) -> Towers:
    """Write the towers of a model beside the index that it made, unless they exist. Remove other models' towers.

    ``model`` can also be the towers that stand for it. A note beside the index records a tower that cannot be exported,
    and later runs do not try it again. With ``wanted`` None, the index keeps its towers, and a new one gets ``text``.
    ``progress`` is called with the finished steps of an export and their number, and before its first one.
    """
    place = Path(index)
    folder = towers_of(place, model.fingerprint)
    if lacking := [name for name in _PACKAGES if find_spec(name) is None]:
        return Towers(left_out={"text": f"these packages are missing: pip install {' '.join(lacking)}"})
    with locked(place, "index", IndexFormatError):
        remove_other_towers(place, model.fingerprint)
        held, noted = sound_sides(folder), dict(left_out_of(folder, __version__))
        sides = _SIDES[wanted] if wanted else frozenset({"text", *held, *noted})
        if wanted:  # what nobody wanted before is no reason
            noted = {side: reason for side, reason in noted.items() if reason and side in sides}
        if not sides:
            noted["text"] = ""
        if held - sides or not held:
            shutil.rmtree(folder, ignore_errors=True)
            held = set()
        known, missing = dict(noted), sides - held - noted.keys()
        if missing and "text" not in noted:
            write = partial(export_for_queries, getattr(model, "whole", model), folder, progress=progress)
            held = _export(write, noted, images="image" in sides - noted.keys())
        _note(model, folder, noted)
    reasons = {side: reason for side, reason in noted.items() if reason}
    return Towers(tuple(sorted(held)), reasons, is_new=noted != known)


def _export(write: Callable[..., None], noted: dict[str, str], *, images: bool) -> set[str]:
    """Write both towers, or only the text tower if the other cannot be written. Record why a tower is left out."""
    for last, written in (("image", {"image", "text"}), ("text", {"text"})):
        if last == "image" and not images:
            continue
        try:
            write(images=last == "image")
            return written
        except ModelError as error:
            noted[last] = str(error)
    return set()


def _note(model: Any, folder: Path, noted: Mapping[str, str]) -> None:
    """Write the reason for a missing tower, and the present calibration curve."""
    curve = model.calibration
    texts = {
        LEFT_OUT: json.dumps({"openvse": __version__, "sides": noted}, indent=2) + "\n" if noted else None,
        CALIBRATION: curve.to_json() if curve is not None and (folder / EXPORT).is_file() else None,
    }
    for name, text in texts.items():
        if text is None:
            (folder / name).unlink(missing_ok=True)
        elif not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text:
            with made(folder):
                write_whole(folder / name, text)
