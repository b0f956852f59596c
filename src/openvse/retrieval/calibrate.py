"""The curve from score to probability of a two-tower model, fitted to a data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from openvse.corpus import Corpus
from openvse.corpus.identity import SplitData
from openvse.evaluation.calibrate import MIN_SHORT, SHORT, ScoreCounts, fit_calibration, fit_short
from openvse.evaluation.calibrate import too_small as too_small_to_calibrate
from openvse.evaluation.ensemble import Member
from openvse.indexing.words import query_words
from openvse.model.two_tower import TwoTower
from openvse.scoring.calibration import PART, Calibration, ShortCurve
from openvse.types import EmbeddingSet

_MOST_IMAGES = 2000  # whose scores with short queries are computed
_ROWS = 64


@dataclass(frozen=True)
class CountedCorpus:
    """The counted scores of a corpus, from which a curve is fitted once every pair has been seen."""

    counts: ScoreCounts
    corpus: Corpus
    images: EmbeddingSet

    def fit(self, model: TwoTower) -> Calibration:
        """Fit the curve of the model whose scores these are, with the curves of queries of one and two words."""
        digest, name = SplitData.of_pairs(self.corpus).digest, self.corpus.name
        curve = fit_calibration(self.counts, model=model.fingerprint, name=name, digest=digest)
        if not model.indexable:
            return curve
        words, said = _words_of(self.corpus)
        return replace(curve, short=_short_curves(model, self.images, words[:_MOST_IMAGES]), said=said)


def count_scores(member: Member, corpus: Corpus) -> CountedCorpus | None:
    """Return a counter of the scores of a corpus, or None if it is too small for a curve."""
    if too_small_to_calibrate(corpus.relevance) is not None:
        return None
    return CountedCorpus(ScoreCounts(member, corpus.relevance), corpus, member.images)


def _short_curves(model: TwoTower, images: EmbeddingSet, words: list[set[str]]) -> dict[str, ShortCurve]:
    """Fit the curves of short queries, made of the words of captions, where an image with all of them is relevant."""
    images, drawing, curves = images[: len(words)], np.random.default_rng(0), {}
    for count, queries in ((1, _single(words)), (2, _pairs(words, drawing))):
        known = [each for each in queries if not any(model.unknown_words(" ".join(each)))]
        chosen = [known[at] for at in sorted(drawing.permutation(len(known))[:SHORT])]
        if len(chosen) < MIN_SHORT:
            continue
        texts = model.encode_text([" ".join(each) for each in chosen]).to(images.vectors.device)
        rows = [model.score(images[at : at + _ROWS], texts).cpu() for at in range(0, len(images), _ROWS)]
        held = np.array([[sum(word in some for word in each) for some in words] for each in chosen])
        scores = np.concatenate([row.float().numpy() for row in rows]).T
        for key, least in ((str(count), 0), (PART, 1))[:count]:
            curves[key] = fit_short(scores, held == count, (least <= held) & (held < count))
    return curves


def _words_of(corpus: Corpus) -> tuple[list[set[str]], float]:
    """Return the words of the captions of each image, folded, without function words, and the share of a caption."""
    words: list[set[str]] = [set() for _ in range(len(corpus))]
    held, captions = 0.0, np.bincount(corpus.relevance.images, minlength=len(corpus))
    for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True):
        found = query_words(corpus.captions[text])
        words[image] |= {" ".join(parts) for parts in found.values()}
        held += len(found) / captions[image]
    return words, min(1.0, held / max(1, sum(map(len, words))))


def _single(words: Sequence[set[str]]) -> list[tuple[str, ...]]:
    """Return the words of at least two images, and of at most half of them."""
    images = Counter(chain.from_iterable(words))
    return [(word,) for word, count in sorted(images.items()) if 2 <= count <= len(words) / 2]


def _pairs(words: Sequence[set[str]], drawing: np.random.Generator) -> list[tuple[str, ...]]:
    """Return pairs of such words that one image has, drawn image by image."""
    common, pairs = {word for (word,) in _single(words)}, dict[tuple[str, ...], None]()
    for _ in range(1 + 2 * SHORT // max(1, len(words))):
        for held in words:
            if len(both := sorted(held & common)) >= 2:
                pairs[tuple(sorted(drawing.choice(both, 2, replace=False).tolist()))] = None
    return sorted(pairs)
