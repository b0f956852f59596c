"""The views of an image: code that MV-VSE's terms and their diagnostics share."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from openvse.errors import RecipeError
from openvse.functional import MASKED, places_of
from openvse.types import EmbeddingSet, ScoredBatch, on_cpu


def view_scores(images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "K I T"]:
    """Score each of the K views of the images: ``s(v_k, t) = cos(v_k, t)`` (MV-VSE, eq. 5).

    In MV-VSE a text has one embedding; if it has several, a view is scored with the best of them, so that the
    maximum over the views is always the ``set_max`` score. Raise RecipeError if the numbers of views differ.
    """
    if not bool(on_cpu(images.mask).all()):
        raise RecipeError(
            "a multi-view term needs the same number of embeddings for every image, and this image aggregator "
            "yields as many as an image has elements: choose one with a fixed number, such as multi_view"
        )
    products = torch.einsum("ikd,tld->kitl", images.vectors, texts.vectors)
    return products.masked_fill(~texts.mask, MASKED).amax(dim=-1)


def view_diagnostics(batch: ScoredBatch) -> dict[str, Float[Tensor, ""]]:
    """Return the share of the positive pairs that each view wins (MV-VSE, Fig. 4c, d), and how similar the views are.

    ``view_similarity`` is the mean cosine between two views of an image; it is left out at K = 1.
    """
    views = view_scores(batch.images, batch.texts)
    num_views = len(views)
    images, texts = places_of(batch.positives)
    winners = views[:, images, texts].argmax(dim=0)
    report = {f"won_by_view_{k}": (winners == k).sum() / max(len(winners), 1) for k in range(num_views)}
    if num_views > 1:
        vectors = batch.images.vectors
        pairs = torch.triu_indices(num_views, num_views, offset=1, device=vectors.device)
        cosines = (vectors @ vectors.mT)[:, pairs[0], pairs[1]]
        report["view_similarity"] = cosines.mean()
    return report
