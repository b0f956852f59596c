"""Accuracies by hand: ten annotators, ties, spellings, sets; and WUPS."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_wordnet import write_wordnet

from openvse.errors import DataError
from openvse_papers.vqa.answers import WordNet, answer_accuracy, exact_match, wups
from tests.failures import Failures
from tests.naming import names, refusal

TEN = ["two"] * 3 + ["2 dogs"] * 3 + ["The 2"] + ["many"] * 2 + ["three"]


def test_ten_annotators(failures: Failures):
    for prediction, answers, score in [
        ("2", TEN, 1.0),
        ("a two.", TEN, 1.0),
        ("two dogs", TEN, 0.9),
        ("MANY", TEN, 0.6),
        ("3", TEN, 0.3),
        ("none", TEN, 0.0),
        # a tie of five and five: both are right
        ("yes", ["yes", "no"] * 5, 1.0),
        ("no", ["yes", "no"] * 5, 1.0),
        ("1000", ["1,000"] * 4 + ["999"] * 6, 1.0),
        ("t shirt", ["t-shirt"] * 2 + ["shirt"] * 8, 0.6),
        ("don't know", ["dont know"] * 10, 1.0),
        # all ten agree on a spelling that is not the normal one
        ("2", ["two"] * 10, 1.0),
    ]:
        with failures.of(prediction, answers, score):
            assert answer_accuracy([prediction], [answers], votes=True) == pytest.approx([score])


words = st.sampled_from(["yes", "no", "2", "red"])


@pytest.mark.medium
@given(st.lists(st.tuples(words, st.lists(words, min_size=4, max_size=10)), min_size=1, max_size=6))
def test_many_questions_are_each_the_mean_over_subsets(cases):
    slow = []
    for prediction, answers in cases:
        subsets = list(combinations(answers, len(answers) - 1))
        slow.append(np.mean([min(subset.count(prediction) / 3, 1) for subset in subsets]))
    predictions, answers = zip(*cases, strict=True)
    np.testing.assert_allclose(answer_accuracy(predictions, answers, votes=True), slow)


def test_without_votes_each_answer_is_right():
    found = answer_accuracy(
        ["Fork", "knife", "spoon", "garbage bin"], [["knife", "a fork"]] * 3 + [["garbage_bin"]], votes=False
    )
    np.testing.assert_array_equal(found, [1, 1, 0, 1])


def test_exact_matches_are_of_sets():
    given = [["knife", "fork"]] * 4
    predicted = [["The fork", "knife", "fork"], ["fork"], ["fork", "knife", "spoon"], []]
    np.testing.assert_array_equal(exact_match(predicted, given), [1, 0, 0, 0])


def test_no_questions():
    assert answer_accuracy([], [], votes=True).shape == exact_match([], []).shape == (0,)


def test_what_does_not_fit_is_refused():
    assert names(refusal(DataError, answer_accuracy, ["yes"], [["yes"], ["no"]], votes=False), "1", "2")
    assert names(refusal(DataError, exact_match, [["yes"], ["no"]], [["yes"], []]), "1 ")


SIMILAR = {("chair", "sofa"): 0.92, ("chair", "table"): 0.6, ("sofa", "table"): 0.5, ("2", "3"): 0.95}


def similarity(one: str, other: str) -> float:
    return 1.0 if one == other else SIMILAR.get((one, other), SIMILAR.get((other, one), 0.0))


def test_one_question(failures: Failures):
    for predicted, answers, at_09, at_00 in [
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
    ]:
        with failures.of(predicted, answers, at_09, at_00):
            assert wups([predicted], [answers], similarity, threshold=0.9) == pytest.approx([at_09])
            assert wups([predicted], [answers], similarity, threshold=0.0) == pytest.approx([at_00])


def test_at_the_threshold_nothing_is_taken_off():
    assert wups([["chair"]], [["sofa"]], similarity, threshold=0.92) == pytest.approx([0.92])


def test_with_wordnet(tmp_path):
    tiny = WordNet(write_wordnet(tmp_path))
    found = wups([["couches"], ["chair"]], [["sofa"], ["Table"]], tiny.similarity, threshold=0.9)
    np.testing.assert_allclose(found, [1, 0.1 * 8 / 11])


def test_wups_of_what_does_not_fit_is_refused():
    assert names(refusal(DataError, wups, [["chair"]], [["sofa"], ["table"]], similarity, threshold=0.9), "1", "2")
    assert names(refusal(DataError, wups, [["chair"]], [[]], similarity, threshold=0.9), "0 ")
