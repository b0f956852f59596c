"""The best linear map from images to sentences, in closed form: a start for training, and a baseline for it.

Both aggregators of the model are ``pooled_linear``, or ``gated`` or ``beside`` around one. Ridge regression maps its
pooled images to the mean of the pooled sentences of each image. Both sides are then whitened twice, so that two things
count less: what the map cannot predict of a sentence, and content common to all captions (people, dogs).

The names of the classes that the backbone tells apart are a prior of this map. The sentences of the classes, weighted
by their probabilities, are a guess of the sentence of an image that needs no caption (ConSE, Norouzi et al., 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from openvse.aggregators import Aggregator
from openvse.aggregators.composed import Beside, Gated, PooledLinear
from openvse.corpus import Corpus
from openvse.errors import DataError, RecipeError
from openvse.evaluation.embed import embed_corpus
from openvse.features.store import FeatureStore
from openvse.model.two_tower import Tower, TwoTower
from openvse.types import EmbeddingSet, Features, FeatureSource

RIDGES = tuple(10.0 ** (exponent / 4) for exponent in range(-8, 9))
"""Candidates for the ridge, in units of the mean variance of the images times their number."""

RIDGES_OF_REST = tuple(10.0 ** (exponent / 4) for exponent in range(-8, 13))
"""Candidates for the ridge of what names leave to explain."""

LEAST_IMAGES = 3
"""The fewest images from which a map can be solved, one of which is left out."""

WHITENING, FLOOR = 0.25, 0.03
"""Exponent of the whitening (0 is none, 0.5 is full), and the share of the largest variance added to each."""

MIDDLE_WEIGHTS = (0.0, 0.15, 0.3, 0.6, 1.0)
"""Candidates for the length of what the middle of the network sees, beside pooled images of the length 1."""

NOISE_FLOOR = 3.0
"""What is added to each variance of the errors of sentences, in units of their mean, if the images are very many."""


@dataclass(frozen=True)
class Ridge:
    """A ridge regression whose ridge has the smallest leave-one-out error.

    Attributes:
        target_mean: the prediction for the mean image, which is subtracted before.
        scale: s, by which the guesses of the prior are multiplied before the weight adds to them. 0 without a prior.
        ridge: in units of the mean squared length of the centred images.
        explained: the share of the targets' variance that the predictions of left-out items explain. Negative if the
            mean is a better guess.
        errors: the targets less the predictions of left-out items.
        share: the weight of the middle of the network beside pooled images, from ``MIDDLE_WEIGHTS``.
    """

    weight: Float[np.ndarray, "C S"]
    image_mean: Float[np.ndarray, "C"]
    target_mean: Float[np.ndarray, "S"]
    ridge: float
    explained: float
    errors: Float[np.ndarray, "n S"]
    scale: float = 0.0
    share: float = 0.0


@dataclass(frozen=True)
class LinearMaps:
    """An image x becomes ``(x - image_mean) image``, a sentence q becomes ``(q - text_mean) text``."""

    image: Float[np.ndarray, "L D"]
    image_mean: Float[np.ndarray, "L"]
    text: Float[np.ndarray, "S D"]
    text_mean: Float[np.ndarray, "S"]


def ridge_regression(
    images: Float[np.ndarray, "n C"],
    targets: Float[np.ndarray, "n S"],
    guesses: Float[np.ndarray, "n S"] | None = None,
    ridges: Sequence[float] = (),
) -> Ridge:
    """Solve ``min |Y - s G - X W|^2 + r |W|^2`` on centred data in double precision, with r chosen by leave-one-out.

    One eigendecomposition of the smaller of ``X X^T`` and ``X^T X`` serves all candidates, and the error of a
    left-out item is its residual divided by ``1 - h``, where h is its own weight in its prediction (Allen, 1974).

    Without guesses G, r has the smallest error. With them, it is the largest r whose error is within one standard error
    of the smallest (Breiman et al., 1984), because ridge and scale are both chosen. A and B are the residuals of Y and
    of G for left-out items, and ``s = max(0, <A, B> / <B, B>)``.

    ``ridges`` are other candidates.
    """
    count = len(images)
    if count < LEAST_IMAGES:
        raise DataError(
            f"a linear map is solved from {count} captioned image(s): give at least {LEAST_IMAGES} for training"
        )
    image_mean, target_mean = images.mean(0, dtype=float), targets.mean(0, dtype=float)
    x, y = images - image_mean, targets - target_mean
    g = np.zeros_like(y) if guesses is None else guesses - guesses.mean(0, dtype=float)
    dual = count <= x.shape[1]
    variances, basis = np.linalg.eigh(x @ x.T if dual else x.T @ x)
    variances = variances.clip(min=0)
    unit = variances.sum() / count or 1.0  # all images may be the same
    # In the basis, x = left * scale. The predictions of a ridge r shrink each direction by v / (v + r).
    left = basis if dual else x @ basis
    onto, onto_guesses = left.T @ y, left.T @ g

    def left_out(ridge: float) -> tuple[Float[np.ndarray, "n S"], float]:
        """Return the errors of left-out items with a ridge, and the scale."""
        shrink = ((variances if dual else 1) / (variances + ridge * unit))[:, None]
        others = (1 - (left**2) @ shrink - 1 / count).clip(min=1e-9)
        a, b = (y - left @ (shrink * onto)) / others, (g - left @ (shrink * onto_guesses)) / others
        scale = max(0.0, float((a * b).sum() / max((b**2).sum(), np.finfo(float).tiny)))
        return a - scale * b, scale

    candidates = ridges or (RIDGES if guesses is None else RIDGES_OF_REST)
    squares = {ridge: (left_out(ridge)[0] ** 2).sum(1) for ridge in candidates}
    least = min(squares.values(), key=np.mean)
    allowed = least.mean() + (0 if guesses is None else least.std(ddof=1) / np.sqrt(count))
    ridge = max(ridge for ridge, each in squares.items() if each.mean() <= allowed)
    errors, scale = left_out(ridge)
    solved = basis @ ((onto - scale * onto_guesses) / (variances + ridge * unit)[:, None])
    weight = x.T @ solved if dual else solved
    explained = 1 - float(squares[ridge].sum()) / max(float((y**2).sum()), np.finfo(float).tiny)
    return Ridge(weight, image_mean, target_mean, ridge, explained, errors, scale)


def noise_whitening(errors: Float[np.ndarray, "m S"], images: int, floor: float) -> Float[np.ndarray, "S S"]:
    """Return ``(N / mean eigenvalue of N + floor (1 + S / images) I)^-1/2``, N the covariance of the errors.

    A prediction and its sentence differ by noise with the covariance N, so differences count by its inverse, as in
    within-class covariance normalisation (Hatch, Kajarekar and Stolcke, 2006). From few images, N is hardly known: the
    eigenvalues of the covariance of n vectors in S dimensions spread by S / n even if the true ones are all the same.
    """
    variances, basis = np.linalg.eigh(errors.T @ errors)
    size = len(variances)
    shares = variances.clip(min=0) / (variances.mean() or 1.0)
    white: Float[np.ndarray, "S S"] = (basis * (shares + floor * (1 + size / images)) ** -0.5) @ basis.T
    return white


def linear_maps(
    images: Float[np.ndarray, "n L"],
    sentences: Float[np.ndarray, "m S"],
    owners: Integer[np.ndarray, "m"],
    table: Float[np.ndarray, "K S"],
    width: int,
    *,
    middle: int = 0,
    noise_floor: float = NOISE_FLOOR,
    like: Ridge | None = None,
) -> tuple[LinearMaps, Ridge]:
    """Return the maps of both sides, and the regression with its own error.

    Args:
        images: u, the pooled images, then what the middle of the network sees, then the probabilities of K classes.
        sentences: the captions of the images, one or more of each.
        owners: the row of the image of each sentence.
        table: the sentences of the names of the classes. All are 0 without names. K may be 0.
        width: D, the width of both sides.
        middle: the number of columns of the middle. They are standardised and weighted against u, and the weight has
            the smallest error of left-out images, as the ridge has.
        noise_floor: the floor of ``noise_whitening``, which a very large one switches off.
        like: a solution whose ridge and share are kept, which takes a fifth of the time or less.
    """
    targets = _mean_of_each(sentences, owners, len(images))
    pooled, likely = np.split(images, [images.shape[1] - len(table)], axis=1)
    guesses, mean = likely @ table if table.any() else None, images.mean(0, dtype=float)
    units, tried = _units(pooled, middle), []
    for share in (MIDDLE_WEIGHTS if middle else (0.0,)) if like is None else (like.share,):
        scales = np.concatenate([units[: len(units) - middle], share * units[len(units) - middle :]])
        found = ridge_regression(pooled * scales, targets, guesses, () if like is None else (like.ridge,))
        tried.append((replace(found, share=share), scales))
    found, scales = max(tried, key=lambda each: each[0].explained)
    weight = np.vstack([scales[:, None] * found.weight, found.scale * table])
    noise = noise_whitening(sentences - targets[owners] + found.errors[owners], len(images), noise_floor)
    white = noise @ whitening((images - mean) @ (weight @ noise), width)
    return LinearMaps(weight @ white, mean, white, found.target_mean), found


def _units(pooled: Float[np.ndarray, "n C"], middle: int) -> Float[np.ndarray, "C"]:
    """Return what standardises the columns of the middle and gives them the mean length of the others."""
    units = np.ones(pooled.shape[1])
    if middle:
        centred = pooled - pooled.mean(0)
        first, last = centred[:, :-middle], centred[:, -middle:]
        inverse = 1 / last.std(0).clip(min=np.finfo(np.float32).tiny)
        lengths = [np.linalg.norm(each, axis=1).mean() for each in (first, last * inverse)]
        units[-middle:] = inverse * lengths[0] / max(lengths[1], np.finfo(float).tiny)
    return units


def _mean_of_each(
    sentences: Float[np.ndarray, "m S"], owners: Integer[np.ndarray, "m"], images: int
) -> Float[np.ndarray, "n S"]:
    sums = np.zeros((images, sentences.shape[1]))
    np.add.at(sums, owners, sentences)
    means: Float[np.ndarray, "n S"] = sums / np.bincount(owners, minlength=images).clip(min=1)[:, None]
    return means


def maps_of_names(
    table: Float[np.ndarray, "K S"], likely: Float[np.ndarray, "K"], pooled: int, width: int
) -> LinearMaps:
    """Return the maps without captions: the probabilities of classes, less their mean, times their sentences.

    Sentences keep their own mean, which no caption is there to tell. The sentences of the classes whiten both sides.

    Args:
        table: the sentences of the names of the classes.
        likely: the mean of the probabilities over the images.
        pooled: the width of u, which the map does not read.
        width: D, the width of both sides.
    """
    white = whitening(table - table.mean(0), width)
    weight = np.vstack([np.zeros((pooled, width)), table @ white])
    return LinearMaps(weight, np.pad(likely, (pooled, 0)), white, np.zeros(table.shape[1]))


def whitening(predictions: Float[np.ndarray, "n S"], width: int) -> Float[np.ndarray, "S D"]:
    """Return ``V (v / v_max + FLOOR)^-WHITENING`` from the covariance ``V v V^T`` of centred predictions.

    Without the rotation back, cosines equal the symmetric whitening's. The directions come in the order of their
    variance. A smaller ``width`` leaves out the last, a larger one is filled with zeros.
    """
    variances, basis = np.linalg.eigh(predictions.T @ predictions)
    variances, basis = variances[::-1].clip(min=0), basis[:, ::-1]
    scale = (variances / max(variances[0], np.finfo(float).tiny) + FLOOR) ** -WHITENING
    whole = np.zeros((len(basis), width))
    rank = min(width, len(basis))
    whole[:, :rank] = (basis * scale)[:, :rank]
    return whole


@torch.no_grad()
def solve(
    model: TwoTower,
    training: Corpus,
    features: FeatureSource | None,
    text_features: FeatureStore | None,
    names: Sequence[str] = (),
) -> Ridge:
    """Give both sides of a model the weights of the closed form. Poolings behind a gate do not change.

    Where the maps are residual, as around the aggregators of CLIP, the images move towards their sentences, which stay.
    Stored features are read in place of images, and stored token states in place of captions. The returned regression
    holds its own error. ``names``, a sentence for each class of the aggregator of images, are the prior of the map.
    """
    image, text = (linear_of(side, getattr(model, side).aggregator) for side in ("image", "text"))
    described = described_by(model)
    embedded = embed_corpus(described, training, features, text_features=text_features)
    sets = (embedded.images, embedded.texts)
    images, sentences = (each.vectors.squeeze(1).double().numpy() for each in sets)
    pairs = embedded.corpus.relevance
    if image.residual or text.residual:
        return _adapt(image, images, _mean_of_each(sentences[pairs.texts], pairs.images, len(images)))
    table = sentences_of(described, names) if names else np.zeros((image.classes, sentences.shape[1]))
    known, width = sentences[pairs.texts], image.linear.out_features
    maps, regression = linear_maps(images, known, pairs.images, table, width, middle=image.middle)
    set_maps(model, maps)
    return regression


def described_by(model: TwoTower) -> TwoTower:
    """Return a model whose embeddings are what the linear maps of another model read."""
    image = Tower[Any](model.image.encoder, _Described(linear_of("image", model.image.aggregator)))
    text = Tower[Any](model.text.encoder, _Described(linear_of("text", model.text.aggregator)))
    return TwoTower(image, text, model.similarity)


def sentences_of(described: TwoTower, names: Sequence[str]) -> Float[np.ndarray, "K S"]:
    """Return the sentences of classes as the linear map of texts reads them."""
    table: Float[np.ndarray, "K S"] = described.encode_text(names).vectors.squeeze(1).double().cpu().numpy()
    return table


@torch.no_grad()
def set_maps(model: TwoTower, maps: LinearMaps) -> None:
    """Give both sides of a model the weights of linear maps."""
    _set(linear_of("image", model.image.aggregator), maps.image, maps.image_mean)
    _set(linear_of("text", model.text.aggregator), maps.text, maps.text_mean)


def can_adapt(model: TwoTower) -> bool:
    """Return whether both sides of a model end in residual linear maps."""
    sides = model.image.aggregator, model.text.aggregator
    return all(isinstance(each, PooledLinear) and each.residual for each in sides)


def _adapt(image: PooledLinear, images: Float[np.ndarray, "n C"], targets: Float[np.ndarray, "n S"]) -> Ridge:
    """Move images towards their sentences by a map that the ridge pulls to 0, at which they have their own scores."""
    x, y = images - images.mean(0), targets - targets.mean(0)
    own = (x * y).sum() / max((x**2).sum(), np.finfo(float).tiny)  # the best prediction of unmoved images
    regression = ridge_regression(images, y - own * x)
    gains = own > 0 and regression.explained > 0
    _set(image, regression.weight / own if gains else 0 * regression.weight, regression.image_mean)
    return regression


def linear_of(side: str, aggregator: Aggregator) -> PooledLinear:
    """Return the linear map of an aggregator, or of its ``base``. Raise RecipeError if it has none."""
    inner = aggregator.base if isinstance(aggregator, Gated | Beside) else aggregator
    if not isinstance(inner, PooledLinear):
        raise RecipeError(
            f"recipe: the closed form needs {side}.aggregator: pooled_linear, or gated or beside with this base, "
            f"not {type(inner).__name__}"
        )
    return inner


class _Described(Aggregator):
    """The pooled items that a linear map reads, as embeddings."""

    unit_length = False

    def __init__(self, linear: PooledLinear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, features: Features) -> EmbeddingSet:
        """Return ``vectors [B, 1, L]``."""
        vectors: Tensor = self.linear.describe(features).unsqueeze(1)
        return EmbeddingSet(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device))


def _set(part: PooledLinear, weight: Float[np.ndarray, "L D"], mean: Float[np.ndarray, "L"]) -> None:
    """Let a part compute ``(u - mean) weight``."""
    part.linear.weight.copy_(torch.from_numpy(weight.T))
    part.linear.bias.copy_(torch.from_numpy(-mean @ weight))
