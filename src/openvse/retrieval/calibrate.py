"""The curve from score to probability of a two-tower model, fitted to a data set."""

from __future__ import annotations

from dataclasses import dataclass

from openvse.corpus import Corpus, SplitData
from openvse.evaluation import Member, fit_calibration
from openvse.evaluation.calibrate import ScoreCounts
from openvse.evaluation.calibrate import too_small as too_small_to_calibrate
from openvse.scoring import Calibration


@dataclass(frozen=True)
class CountedCorpus:
    """The counted scores of a corpus, from which a curve is fitted once every pair has been seen."""

    counts: ScoreCounts
    corpus: Corpus

    def fit(self, model: str) -> Calibration:
        """Fit the curve of the model with this fingerprint."""
        return fit_calibration(
            self.counts, model=model, name=self.corpus.name, digest=SplitData.of_pairs(self.corpus).digest
        )


def count_scores(member: Member, corpus: Corpus) -> CountedCorpus | None:
    """Return the counter of a corpus's scores, or None if it is too small for a curve."""
    if too_small_to_calibrate(corpus.relevance) is not None:
        return None
    return CountedCorpus(ScoreCounts(member, corpus.relevance), corpus)
