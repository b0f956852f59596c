"""The queries on which two models differ most, with what each of them has found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from openvse.media.packed import ImageFile


@dataclass(frozen=True)
class Shown:
    """A query, an answer or what was found, as a page shows it: a text, an image, or both."""

    text: str = ""
    image: ImageFile | None = None


@dataclass(frozen=True)
class Example:
    """One query, and what both models made of it.

    Attributes:
        query: the query.
        right: a right answer to it.
        found: the first result of each model.
        results: what the first result of each model is, and how good, such as "first hit; right at 3".
        hits: whether the first result of each model is right.
    """

    query: Shown
    right: Shown
    found: tuple[Shown, Shown]
    results: tuple[str, str]
    hits: tuple[bool, bool]


@dataclass(frozen=True)
class Examples:
    """The largest gains and losses of one direction.

    Attributes:
        title: what kind of queries they are.
        better: the queries on which the second model is better, the largest gain first.
        worse: the queries on which it is worse, the largest loss first.
    """

    title: str
    better: tuple[Example, ...]
    worse: tuple[Example, ...]


def largest_changes(
    gains: Float[np.ndarray, "Q"], count: int
) -> tuple[Int[np.ndarray, "B"], Int[np.ndarray, "W"]]:
    """Return the positions of the largest gains and of the largest losses, at most ``count`` each; 0 is neither."""
    order = np.argsort(-gains, kind="stable")
    better, worse = order[gains[order] > 0], order[gains[order] < 0][::-1]
    return better[:count], worse[:count]
