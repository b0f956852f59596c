"""WUPS by hand, with similarities by hand."""

import numpy as np
import pytest
from tiny_wordnet import write_wordnet

from openvse.errors import DataError
from openvse.vqa.accuracy import wups
from openvse.vqa.wordnet import WordNet

SIMILAR = {("chair", "sofa"): 0.92, ("chair", "table"): 0.6, ("sofa", "table"): 0.5, ("2", "3"): 0.95}


def similarity(one: str, other: str) -> float:
    return 1.0 if one == other else SIMILAR.get((one, other), SIMILAR.get((other, one), 0.0))


@pytest.mark.parametrize(
    ("predicted", "given", "at_09", "at_00"),
    [
        (["chair"], ["chair"], 1, 1),
        (["The Chair"], ["chair"], 1, 1),
        (["chair"], ["sofa"], 0.92, 0.92),
        (["chair"], ["table"], 0.06, 0.6),
        (["chair"], ["lamp"], 0, 0),
        (["two"], ["3"], 0.95, 0.95),
        # over the prediction 1, over the answers 1 x .06
        (["chair"], ["chair", "table"], 0.06, 0.6),
        # over the prediction .92 x 1, over the answers .92 x 1: sofa is nearest to chair, table is there
        (["sofa", "table"], ["chair", "table"], 0.92, 0.92),
        # a member too many counts against the prediction
        (["chair", "table"], ["chair"], 0.06, 0.6),
        (["chair", "chair"], ["chair"], 1, 1),
        ([], ["chair"], 0, 0),
    ],
)
def test_one_question(predicted, given, at_09, at_00):
    assert wups([predicted], [given], similarity, threshold=0.9) == pytest.approx([at_09])
    assert wups([predicted], [given], similarity, threshold=0.0) == pytest.approx([at_00])


def test_at_the_threshold_nothing_is_taken_off():
    assert wups([["chair"]], [["sofa"]], similarity, threshold=0.92) == pytest.approx([0.92])


def test_with_wordnet(tmp_path):
    tiny = WordNet(write_wordnet(tmp_path))
    found = wups([["couches"], ["chair"]], [["sofa"], ["Table"]], tiny.similarity, threshold=0.9)
    np.testing.assert_allclose(found, [1, 0.1 * 8 / 11])


def test_what_does_not_fit_is_refused():
    with pytest.raises(DataError, match="1 predictions for 2 questions"):
        wups([["chair"]], [["sofa"], ["table"]], similarity, threshold=0.9)
    with pytest.raises(DataError, match="give one for each that has an answer"):
        wups([["chair"]], [[]], similarity, threshold=0.9)
