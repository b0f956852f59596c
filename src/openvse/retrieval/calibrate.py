"""The curve from score to probability of a two-tower model, fitted to a data set."""

from __future__ import annotations

from dataclasses import dataclass

from openvse.corpus import Corpus, digest_of_pairs
from openvse.errors import DataError
from openvse.evaluation import (
    Member,
    ScoreCounts,
    embed_corpus,
    evaluate,
    fit_calibration,
    too_small_to_calibrate,
)
from openvse.features import open_store
from openvse.model import TwoTower
from openvse.retrieval.evaluate import open_captioned
from openvse.scoring import Calibration
from openvse.training.kind import Request


@dataclass(frozen=True)
class CountedCorpus:
    """The counted scores of a corpus, from which a curve is fitted once every pair has been seen."""

    counts: ScoreCounts
    corpus: Corpus

    def fit(self, model: str) -> Calibration:
        """Fit the curve of the model with this fingerprint."""
        return fit_calibration(
            self.counts, model=model, name=self.corpus.name, digest=digest_of_pairs(self.corpus)
        )


def count_scores(member: Member, corpus: Corpus) -> CountedCorpus | None:
    """Return what counts the scores of a corpus; None if it is too small for a curve."""
    if too_small_to_calibrate(corpus.relevance) is not None:
        return None
    return CountedCorpus(ScoreCounts(member, corpus.relevance, member.images.vectors.device), corpus)


def calibrate_towers(model: TwoTower, request: Request) -> tuple[Calibration, tuple[str, ...]]:
    """Fit the curve of a model to one split of a data set; the model keeps it, and its folder does when it is saved.

    Args:
        request: data, split, feature store and batch size; the rest of it is not used.

    Returns:
        The curve, and what the user should know before the probabilities are relied on.

    Raises:
        OpenVSEError: several feature stores are named.
        DataError: the data cannot be used, or are too small.
    """
    request.check_stores(1)
    corpus = open_captioned(request)
    chosen = request.part(corpus)
    if reason := too_small_to_calibrate(chosen.relevance):
        raise DataError(f"{chosen.name} is too small for a curve from score to probability: {reason}")
    store = open_store(request.store(0), model.image.encoder)
    embedded = embed_corpus(model, chosen, store, batch_size=request.batch_size, progress=request.progress)
    member = Member(embedded.images, embedded.texts, model.similarity)
    counted = count_scores(member, embedded.corpus)
    if counted is None:
        raise DataError(f"{chosen.name}: too few images can be read for a curve from score to probability")
    evaluate(
        member.images,
        member.texts,
        embedded.corpus.relevance,
        member.similarity,
        resamples=0,
        see=counted.counts.see,
        progress=request.progress,
    )
    model.calibration = counted.fit(model.fingerprint)
    return model.calibration, (*_warnings(model, corpus, request.split), *embedded.corpus.problems)


def _warnings(model: TwoTower, corpus: Corpus, split: str) -> list[str]:
    """Warn where the model was trained on these pairs, as far as its provenance says so."""
    data = model.provenance.get("data")
    trained_on = data.get("name") if isinstance(data, dict) else None
    if split not in ("train", "all") or trained_on != corpus.name:
        return []
    return [
        f"the model was trained on {corpus.name}, and this curve is fitted to pairs that it has seen: its "
        f"probabilities are too high; use --split validation"
    ]
