"""One call for the contract of any kind of part, and the contract of similarities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from openvse.assembly.parts import parameters
from openvse.errors import RecipeError
from openvse.evaluation.metrics import METRICS
from openvse.functional import normalize
from openvse.media.names import IMAGE_FORMATS
from openvse.registry import Maker, Registry
from openvse.similarities import Similarity
from openvse.similarities.base import score_blocks
from openvse.stores import STORES, EngineAddress, store_kind
from openvse.tasks import TASKS
from openvse.tasks.front import registries
from openvse.types import EmbeddingSet
from openvse_testing.aggregators import check_aggregator
from openvse_testing.contract import NO_OPTIONS, hold, make_part, part_name, require, require_close
from openvse_testing.datasets import check_dataset
from openvse_testing.encoders import CAPTIONS, ENCODER_PROMISES
from openvse_testing.entries import ENTRY_PROMISES, FormatSample
from openvse_testing.objectives import CRITERION_PROMISES, MINER_PROMISES, TERM_PROMISES
from openvse_testing.objectives import WIDTH as TERM_WIDTH
from openvse_testing.stores import check_store

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
