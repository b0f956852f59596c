"""Score matrices as embeddings that have exactly these scores, and matrices of which the truth is known."""

import numpy as np
import torch

from openvse.evaluation.embed import Member
from openvse.evaluation.reliability import ScoreCounts
from openvse.similarities import SetMax
from openvse.types import EmbeddingSet, Relevance


def member(scores: np.ndarray) -> Member:
    """Return embeddings whose inner products are the scores: the rows, and the unit vectors."""
    images = torch.from_numpy(scores.astype(np.float32)).unsqueeze(1)
    texts = torch.eye(scores.shape[1]).unsqueeze(1)
    here = [torch.ones(each.shape[:2], dtype=torch.bool) for each in (images, texts)]
    return Member(EmbeddingSet(images, here[0]), EmbeddingSet(texts, here[1]), SetMax())


def relevance_of(relevant: np.ndarray) -> Relevance:
    images, texts = np.nonzero(relevant)
    return Relevance(images, texts, *relevant.shape)


def counted(scores: np.ndarray, relevant: np.ndarray, block: int = 64) -> ScoreCounts:
    """Count the scores in blocks."""
    counts = ScoreCounts(member(scores), relevance_of(relevant))
    matrix = torch.from_numpy(scores.astype(np.float32))
    for row in range(0, len(scores), block):
        for column in range(0, scores.shape[1], block):
            rows = slice(row, min(row + block, len(scores)))
            columns = slice(column, min(column + block, scores.shape[1]))
            counts.see(rows, columns, matrix[rows, columns])
    return counts


def drawn(num_images: int, captions: int, seed: int = 0, distance: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Draw scores, normal around 0, and around ``distance`` where relevant: then ``log LR = d s - d^2 / 2``."""
    generator = np.random.default_rng(seed)
    relevant = np.repeat(np.eye(num_images, dtype=bool), captions, axis=1)
    return generator.normal(size=relevant.shape) + distance * relevant, relevant
