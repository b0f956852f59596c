"""One call for the contract of any kind of part, and the promises of most kinds."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn

from openvse.assembly.parts import parameters
from openvse.backbones.base import Backbone
from openvse.encoders.augmentations import Augmentation
from openvse.encoders.projections import Projection, TextEncoder
from openvse.errors import BadImageError, OpenVSEError, RecipeError
from openvse.evaluation.metrics import METRICS, Metric
from openvse.evaluation.places import Places
from openvse.evaluation.ranking import QueryRanks
from openvse.functional import normalize, pad
from openvse.media.formats import ImageFormat
from openvse.media.headers import held_in
from openvse.media.images import probe_image, read_image
from openvse.media.names import IMAGE_FORMATS, format_of
from openvse.registry import Maker, Registry
from openvse.similarities import Similarity
from openvse.similarities.scores import score_blocks
from openvse.specs.load import dump_yaml, list_recipes
from openvse.stores import STORES, EngineAddress, store_kind
from openvse.tasks import TASKS
from openvse.tasks.front import registries
from openvse.tasks.recipes import load_recipe
from openvse.training.kind import TaskKind
from openvse.types import EmbeddingSet, Features
from openvse_testing.aggregators import check_aggregator
from openvse_testing.contract import NO_OPTIONS, BrokenContractError, hold, make_part, part_name, require, require_close
from openvse_testing.datasets import check_dataset
from openvse_testing.objectives import CRITERION_PROMISES, MINER_PROMISES, TERM_PROMISES
from openvse_testing.objectives import WIDTH as TERM_WIDTH
from openvse_testing.stores import check_store

_PLACES, _SIZE = np.array([1, 2, 2, 7, 40]), 40


class FormatSample(NamedTuple):
    """A format, and a file of it."""

    known: ImageFormat
    file: Path


def _values(metric: Metric) -> None:
    queries = np.arange(len(_PLACES))

    def of(ranks: np.ndarray) -> np.ndarray:
        untied, places = np.zeros(len(queries), dtype=bool), Places(queries, ranks, _SIZE)
        asked = QueryRanks(queries, ranks, untied, len(queries), _SIZE, places)
        return np.asarray(metric.of(asked), np.float64)

    values, turned = of(_PLACES), of(_PLACES[::-1])
    require(values.shape in ((), _PLACES.shape), f"{len(queries)} queries have {values.shape}, not one each")
    require(bool(np.isfinite(values).all()), "a value is not finite")
    require(np.allclose(turned, values[::-1] if values.ndim else values), "the order of the queries matters")


def _level_by_chance(metric: Metric) -> None:
    expected = np.zeros(3) if metric.chance is None else metric.chance(np.array([1, 2, 5]), _SIZE)
    is_known = np.shape(expected) == (3,) and bool(np.isfinite(expected).all())
    require(is_known, "chance is no number for each query")


def _names(sample: FormatSample) -> None:
    known, file = sample
    require(known.is_read, f"its package is missing: {known.remedy}")
    for name in (file.name, *(f"a.{suffix}" for suffix in known.suffixes.split())):
        require(format_of(name) is known, f"{name} is not of this format: register each of its suffixes")


def _content(sample: FormatSample) -> None:
    known, file = sample
    image, content = read_image(file), file.read_bytes()
    if known.begins is not None:
        wrong = known.begins(b"") or known.begins(bytes(64))
        require(not wrong, "begins is true of a file of zeros, or of none")
        require(read_image(content).tobytes() == image.tobytes(), "its content opens otherwise than its file")
    with held_in(file) as (exif, packet, _):
        require(hasattr(exif, "get_ifd") and isinstance(packet, bytes | str), "facts gives no EXIF and XMP")


def _refusals(sample: FormatSample) -> None:
    image, content = read_image(sample.file), sample.file.read_bytes()
    for what, given, most in (
        ("more pixels than the limit", content, image.width * image.height // 5),
        ("half of its content", content[: len(content) // 2], None),
    ):
        try:
            read_image(given, max_pixels=most)
        except BadImageError:
            continue
        raise BrokenContractError(f"a file with {what} is read")


def _is_whole(kind: type[TaskKind]) -> None:
    require(not inspect.isabstract(kind), f"it lacks {', '.join(getattr(kind, '__abstractmethods__', ()))}")
    missing = {*kind.spec.model_fields} - {*kind.recipe.model_fields}
    require(not missing, f"its recipe lacks the keys {', '.join(sorted(missing))} of its spec")


def _helps(name: str) -> None:
    words = [sys.executable, "-m", "openvse", *name.split("."), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    require(done.returncode == 0, f"openvse {' '.join(words[3:])} fails: {done.stderr.strip()[-200:]}")


def _parts_exist(folder: Path | ModuleType) -> None:
    root = folder if isinstance(folder, Path) else Path(folder.__path__[0])
    known = {name for registry in registries() for name in registry}
    for name in (name for file in sorted(root.rglob("[!_]*.yaml")) for name in list_recipes(str(file))):
        try:
            tree = load_recipe(name).to_dict()
        except OpenVSEError as error:
            raise BrokenContractError(f"{name} cannot be read: {error}") from error
        written = dump_yaml({key: tree.get(key) for key in ("image", "text", "similarity", "objective")})
        missing = {*re.findall(r"name: (\w+)$", written, re.MULTILINE)} - known
        require(not missing, f"{name} names parts that do not exist: {', '.join(sorted(missing))}")


ENTRY_PROMISES: Mapping[str, Sequence[Callable[[Any], None]]] = {
    "metric": (_values, _level_by_chance),
    "image format": (_names, _content, _refusals),
    "task": (_is_whole,),
    "command": (_helps,),
    "recipes": (_parts_exist,),
}


CAPTIONS = ("a dog runs on the red mat", "two cats", "the dog", "a")
_MASK = torch.arange(6) < torch.tensor([6, 1, 3]).unsqueeze(1)


def _require_alone(together: Features, alone: Sequence[Features], width: int) -> None:
    require(together.local.shape[-1] == width, f"the features are {together.local.shape[-1]} wide, not {width}")
    for item, each in enumerate(alone):
        same = together.local[item, together.mask[item]], each.local[0, each.mask[0]]
        require_close(*same, "an item has other features in a batch than by itself", atol=1e-6)


@torch.no_grad()
def _images(backbone: Backbone) -> None:
    pixels = [backbone.preprocess(probe_image(number, (96, 64))).double() for number in range(2)]
    alone = [backbone(backbone.collate([each])) for each in pixels]
    _require_alone(backbone(backbone.collate(pixels)), alone, backbone.feature_dim)


def _frozen(backbone: Backbone) -> None:
    trains = any(weight.requires_grad for weight in backbone.parameters())
    require(trains == backbone.fine_tune, f"fine_tune is {backbone.fine_tune}, but its weights train: {trains}")
    require(backbone.fingerprint is not None, "fingerprint is None, so any store would be taken for its own")


@torch.no_grad()
def _sentences(encoder: TextEncoder) -> None:
    tokens = encoder.tokenize(CAPTIONS)
    for caption, each in zip(CAPTIONS, tokens, strict=True):
        require(each.dtype == torch.int64 and len(each) > 0, "tokenize() gives no int64 [N] with N >= 1")
        require(len(encoder.pieces(caption)) == len(each), "pieces() are not one for each token")
    _require_alone(encoder(pad(tokens)), [encoder(pad([each])) for each in tokens], encoder.local_dim)


def _positions(projection: Projection) -> None:
    generator, lengths = torch.Generator().manual_seed(0), _MASK.sum(dim=1).tolist()
    shape = (*_MASK.shape, projection.input_dim)
    local = torch.randn(shape, dtype=torch.float64, generator=generator)
    together = Features(projection(local.masked_fill(~_MASK.unsqueeze(-1), 3.0), _MASK), _MASK)
    parts = [(local[n : n + 1, :length], _MASK[n : n + 1, :length]) for n, length in enumerate(lengths)]
    alone = [Features(projection(*part), part[1]) for part in parts]
    _require_alone(together, alone, projection.output_dim)
    for name, weight in projection.named_parameters():
        value = together.local[_MASK].pow(2).sum()
        (gradient,) = torch.autograd.grad(value, weight, retain_graph=True, materialize_grads=True)
        require(bool(gradient.any()), f"no gradient reaches {name}")


def _hidden(augmentation: Augmentation) -> None:
    require(torch.equal(augmentation.eval()(_MASK), _MASK), "it hides features in evaluation")
    boxes = torch.rand(*_MASK.shape, 4, generator=torch.Generator().manual_seed(0))
    for seed in range(20):
        torch.manual_seed(seed)
        kept = augmentation.train()(_MASK, boxes if seed % 2 else None)
        require(not bool((kept & ~_MASK).any()), "it keeps features that do not exist")
        require(bool(kept.any(dim=1).all()), "an item keeps no feature: use keep_at_least_one")


ENCODER_PROMISES: Mapping[str, Sequence[Callable[[Any], None]]] = {
    "backbone": (_images, _frozen),
    "text encoder": (_sentences,),
    "projection": (_positions,),
    "augmentation": (_hidden,),
}


WIDTH = 6
_COUNTS = ((1, 1), (3, 1), (3, 2))


def _embeddings(items: int, k: int, seed: int) -> EmbeddingSet:
    """Return unit vectors. An item with several embeddings has the first and some of the others."""
    generator = torch.Generator().manual_seed(seed)
    vectors = normalize(torch.randn(items, k, WIDTH, dtype=torch.float64, generator=generator))
    mask = torch.ones(items, k, dtype=torch.bool)
    mask[:, 1:] = torch.rand(items, k - 1, generator=generator) > 0.5
    return EmbeddingSet(vectors, mask)


def _blocks(similarity: Similarity) -> None:
    for k_images, k_texts in _COUNTS:
        images, texts = _embeddings(7, k_images, 0), _embeddings(5, k_texts, 1)
        full = similarity(images, texts)
        for block_size in (1, 3, 100):
            joined = torch.full_like(full, torch.nan)
            for rows, columns, scores in score_blocks(similarity, images, texts, block_size):
                joined[rows, columns] = scores
            require_close(joined, full, f"blocks of {block_size} differ from the whole matrix")


def _pairs(similarity: Similarity) -> None:
    rows, columns = torch.tensor([0, 6, 3, 3, 6]), torch.tensor([4, 0, 1, 1, 2])
    for k_images, k_texts in _COUNTS:
        images, texts = _embeddings(7, k_images, 0), _embeddings(5, k_texts, 1)
        scores = similarity.pairs(images, texts, rows, columns)
        require_close(scores, similarity(images, texts)[rows, columns], "pairs() differs from the whole matrix")
        empty = similarity.pairs(images, texts, rows[:0], columns[:0])
        require(empty.shape == (0,), "pairs() of no pairs is not empty")


def _cosine(similarity: Similarity) -> None:
    images, texts = _embeddings(4, 1, 0), _embeddings(6, 1, 1)
    cosine = images.vectors[:, 0] @ texts.vectors[:, 0].T
    same = torch.allclose(similarity(images, texts), cosine, rtol=0, atol=1e-12)
    require(
        same is similarity.is_cosine or similarity.reads_gaussians,
        f"is_cosine is {similarity.is_cosine}, but single embeddings say {same}: an option sets it in __init__",
    )
    inner = similarity.is_cosine or similarity.reads_gaussians
    require(inner or not similarity.indexable, "indexable is True, but is_cosine is False")


def _indexable(similarity: Similarity) -> None:
    images, texts = _embeddings(30, 3, 0), _embeddings(5, 2, 1)
    products = torch.einsum("ikd,tld->itkl", images.vectors, texts.vectors)
    exists = images.mask[:, None, :, None] & texts.mask[None, :, None, :]
    largest = products.masked_fill(~exists, -torch.inf).amax(dim=(2, 3))
    same = torch.equal(similarity(images, texts).argsort(dim=0), largest.argsort(dim=0))
    require(same or not similarity.indexable, "indexable is True, but the largest inner product orders otherwise")


def _masked(similarity: Similarity) -> None:
    axis = torch.eye(1, WIDTH, dtype=torch.float64)
    away = normalize(-3 * torch.eye(1, WIDTH, dtype=torch.float64) - 4 * torch.eye(2, WIDTH, dtype=torch.float64)[1:])
    # The second embedding would score best, but does not exist.
    several = EmbeddingSet(torch.stack([away, axis], dim=1), torch.tensor([[True, False]]))
    alone, other = (EmbeddingSet(v.unsqueeze(1), torch.ones(1, 1, dtype=torch.bool)) for v in (away, axis))
    message = "an embedding that does not exist changes the score"
    require_close(similarity(several, other), similarity(alone, other), f"{message} of an image")
    require_close(similarity(other, several), similarity(other, alone), f"{message} of a text")


def _gradient(similarity: Similarity) -> None:
    images, texts = _embeddings(4, 2, 0), _embeddings(3, 1, 1)
    sides = [images.vectors.requires_grad_(), texts.vectors.requires_grad_()]
    for side, gradient in zip(
        ("images", "texts"), torch.autograd.grad(similarity(images, texts).sum(), sides), strict=True
    ):
        require(bool(gradient.isfinite().all()), f"the gradient of the {side} is not finite")
        require(bool(gradient.any()), f"the gradient of the {side} is 0")


def _attention(similarity: Similarity) -> None:
    rows, columns = torch.tensor([0, 6, 3]), torch.tensor([4, 0, 1])
    images, texts = _embeddings(7, 3, 0), _embeddings(5, 2, 1)
    weights = similarity.attended(images, texts, rows, columns)
    says = f"attends is {similarity.attends}, but attended() returns {'weights' if weights else 'none'}"
    require((weights is not None) is similarity.attends, says)
    for each, mask in zip(weights or (), (images.mask[rows], texts.mask[columns]), strict=False):
        total = each.masked_fill(~mask.unsqueeze(1), 0.0).sum(dim=-1)
        require_close(total, torch.ones_like(total), "the weights of the embeddings that exist do not add up to 1")


SIMILARITY_PROMISES = (_blocks, _pairs, _cosine, _indexable, _masked, _gradient, _attention)


ModuleT = TypeVar("ModuleT", bound=nn.Module)

_MODULES: Mapping[str, Sequence[Callable[[Any], None]]] = {
    "miner": MINER_PROMISES,
    "criterion": CRITERION_PROMISES,
    "objective term": TERM_PROMISES,
    "similarity": SIMILARITY_PROMISES,
    **ENCODER_PROMISES,
}
_SAMPLES = {"data set": "a copy of it", "image format": "a file of it", "store": "a folder that does not exist yet"}
# A large margin, so that the negatives of random embeddings violate it.
_USUAL: Mapping[str, Any] = {"miner": "hardest", "criterion": {"name": "hinge", "margin": 1.5}}


def check_part(
    kind: Registry[Any] | str, part: Any, *, options: Mapping[str, Any] = NO_OPTIONS, sample: Path | None = None
) -> None:
    """Check that a part of any kind that openvse takes from packages and plug-ins keeps the promises of its kind.

    ``docs/parts.md`` lists the promises on which openvse relies.

    Args:
        kind: the registry, such as ``MINERS``, or its name in an entry point or in words: ``miner``, ``image_format``.
        part: its registered name, or the part itself. A command's name. A package of recipes, or its folder.
        options: the options, as in a recipe. A missing miner or criterion of a term is ``hardest`` or ``hinge``.
        sample: a file of an image format, a copy of a data set, or a folder that does not exist for a store.

    Raises:
        BrokenContractError: a promise is broken. The message names each.
        RecipeError: the part refuses the options, or there is no such kind.

    Examples:
        >>> from openvse.objectives import MINERS
        >>> check_part(MINERS, "adaptive_top_k", options={"rule": "paper"})
        >>> check_part("metric", "mrr")
    """
    known = {each.kind: each for each in (*registries(), IMAGE_FORMATS, METRICS, STORES, TASKS)}
    name = kind.replace("_", " ") if isinstance(kind, str) else kind.kind
    if sample is None and name in _SAMPLES:
        raise RecipeError(f"the contract of {name} needs a sample: give sample=PATH, {_SAMPLES[name]}")
    place = sample or Path()
    if name == "aggregator":
        check_aggregator(part, options=options)
    elif name == "fusion":
        check_part("similarity", "fused", options={"fusion": {"name": part, **options}})
    elif name == "data set":
        check_dataset(part, place)
    elif name == "store":
        opens = store_kind(part) if isinstance(part, str) else part
        check_store(opens, EngineAddress(part_name(part), place.name, folder=place.parent))
    elif name in _MODULES:
        hold(made_part(known[name], part, options), _MODULES[name], part_name(part))
    elif name in ENTRY_PROMISES:
        entry: Any = known[name].get(part) if isinstance(part, str) and name in known else part
        subject = FormatSample(entry, place) if name == "image format" else entry
        hold(subject, ENTRY_PROMISES[name], part_name(part))
    else:
        kinds = ("aggregator", "fusion", *_SAMPLES, *_MODULES, *ENTRY_PROMISES)
        raise RecipeError(f"no contract for {name!r}: give one of {', '.join(sorted({*kinds}))}")


def made_part(
    registry: Registry[ModuleT], part: str | Maker[ModuleT], options: Mapping[str, Any] = NO_OPTIONS
) -> ModuleT:
    """Return the part to check, in evaluation mode and double precision."""
    width = WIDTH if registry.kind == "similarity" else TERM_WIDTH
    context: dict[str, Any] = dict.fromkeys(("embed_dim", "image_dim", "text_dim", "input_dim"), width)
    context["captions"] = CAPTIONS
    accepted = parameters(registry.get(part) if isinstance(part, str) else part)
    usual = {name: value for name, value in _USUAL.items() if name in accepted}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make_part(registry, part, {**usual, **options}, context).double().eval()
