"""Answers: VQA's normal form and accuracy by hand, and the vocabulary of answers."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openvse.errors import DataError, ModelError
from openvse_papers.vqa.answers import (
    AnswerVocabulary,
    answer_scores,
    are_votes,
    main_answers,
    normalize_answer,
    vote_score,
)
from tests.failures import Failures
from tests.naming import names, refusal


def test_the_normal_form(failures: Failures):
    for answer, normal in [
        ("Yes", "yes"),
        ("  in\tthe \n kitchen ", "in kitchen"),
        # articles, but not inside words, and not if nothing is left
        ("An apple a day", "apple day"),
        ("theatre", "theatre"),
        ("The", "the"),
        ("A", "a"),
        # number words
        ("two", "2"),
        ("None", "0"),
        ("ten men", "10 men"),
        ("twenty one", "twenty 1"),
        # periods go, except before a digit
        ("yes.", "yes"),
        ("3.5", "3.5"),
        ("p.m.", "pm"),
        ("no. 5", "no 5"),
        (".5", ".5"),
        # commas inside numbers take all punctuation with them
        ("1,000", "1000"),
        ("1,000-2,000", "10002000"),
        ("red,white", "red white"),
        ("red, white", "red white"),
        # other signs: a space, or nothing where a space is next to one of them
        ("black/white", "black white"),
        ("black / white", "black white"),
        ("t-shirt", "t shirt"),
        ("t-shirt - blue", "tshirt blue"),
        ("garbage_bin", "garbage bin"),
        ("(left)", "left"),
        ("what?!", "what"),
        ("?", "?"),
        ("", ""),
        # contractions; what is none stays
        ("dont", "don't"),
        ("couldnt've", "couldn't've"),
        ("couldn'tve", "couldn't've"),
        ("y'alld've", "y'all'd've"),
        ("ow's'at", "'ow's'at"),
        ("5 oclock", "5 o'clock"),
        ("its", "its"),
        ("man's", "man's"),
        ("cant", "can't"),
        ("Cafés", "cafés"),
    ]:
        with failures.of(answer, normal):
            assert normalize_answer(answer) == normal


@given(st.text(alphabet="aAthe0159,. -'_?", max_size=12))
def test_the_normal_form_has_tidy_lower_case_words(answer):
    normal = normalize_answer(answer)
    assert normal == normal.lower() and normal == " ".join(normal.split())
    assert bool(normal) is bool(answer.split())


@pytest.mark.parametrize("annotators", [1, 2, 3, 4, 5, 9, 10])
def test_the_score_is_the_mean_over_the_subsets(annotators):
    for matches in range(annotators + 1):
        votes = [True] * matches + [False] * (annotators - matches)
        subsets = list(combinations(votes, annotators - 1))
        slow = sum(min(sum(subset) / 3, 1) for subset in subsets) / len(subsets)
        assert vote_score(np.array(matches), np.array(annotators)) == pytest.approx(slow)


def test_the_worth_of_each_given_answer():
    ten = ["Two", "2", "two.", "the 2", "3", "3", "three", "many", "lots", "a few"]
    assert answer_scores(ten, votes=True) == pytest.approx({"2": 1, "3": 0.9, "many": 0.3, "lots": 0.3, "few": 0.3})
    assert answer_scores(["chair", "The table", "chair"], votes=False) == {"chair": 1.0, "table": 1.0}
    assert answer_scores([], votes=True) == answer_scores([], votes=False) == {}


def test_votes_are_told_from_sets():
    assert are_votes([["yes"] * 10, [], ["no"] * 4])
    assert not are_votes([["chair"], ["a", "b", "c", "d", "e"]])
    assert not are_votes([[], []]) and not are_votes([])


def test_what_most_annotators_said():
    assert main_answers(["cat", "A dog", "dog", "Cat", "bird"], votes=True) == ("cat",)
    assert main_answers(["cat", "dog", "dog"], votes=True) == ("dog",)
    assert main_answers(["cat", "dog", "The cat"], votes=False) == ("cat", "dog")
    assert main_answers([], votes=True) == ()


def test_the_vocabulary_counts_questions():
    ten = [["red"] * 9 + ["blue"]] * 3 + [["blue"] * 10] * 2 + [["green"] * 4 + ["blue"] * 3] + [["Amber"] * 5]
    vocabulary = AnswerVocabulary.from_answers(ten, min_count=1)
    assert vocabulary.answers == ("red", "blue", "amber", "green")
    assert AnswerVocabulary.from_answers(ten, min_count=3).answers == ("red",)
    assert vocabulary.votes
    assert (vocabulary.id_of("the Blue!"), vocabulary.id_of("pink"), len(vocabulary)) == (1, None, 4)
    assert "BLUE" in vocabulary and "pink" not in vocabulary and 3 not in vocabulary
    nine = [["yes"]] * 9 + [["no"]] * 8
    assert AnswerVocabulary.from_answers(iter(nine)).answers == ("yes",)


def test_each_member_of_a_set_counts():
    vocabulary = AnswerVocabulary.from_answers([["knife", "fork"], ["fork"], ["a", "b", "c", "d"]], min_count=2)
    assert (vocabulary.answers, vocabulary.votes) == (("fork",), False)


def test_soft_targets():
    vocabulary = AnswerVocabulary(["yes", "no", "2"], votes=True)
    targets = vocabulary.targets([["Yes"] * 2 + ["no"] * 7 + ["maybe"], ["two"] * 10, ["maybe"] * 10, []])
    assert targets.dtype == np.float32
    np.testing.assert_allclose(targets, [[0.6, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]], rtol=1e-6)
    single = AnswerVocabulary(["yes", "no", "2"], votes=False)
    np.testing.assert_array_equal(single.targets([["no", "two"], ["maybe", "yes"]]), [[0, 1, 1], [1, 0, 0]])
    assert single.targets([]).shape == (0, 3)


def test_no_frequent_answer():
    with pytest.raises(DataError, match=" 9 .* 2 .*min_count"):
        AnswerVocabulary.from_answers([["yes"], ["yes"], ["no"]])
    assert names(refusal(DataError, AnswerVocabulary.from_answers, [[], []]), " 9 ", "min_count")


def test_saving_and_loading(tmp_path):
    path = tmp_path / "model" / "answers.json"
    for votes in (True, False):
        AnswerVocabulary(["café", "2"], votes=votes).save(path)
        loaded = AnswerVocabulary.load(path)
        assert (loaded.answers, loaded.votes) == (("café", "2"), votes)
    for content in ("{}", '{"answers": 3, "votes": true}', "[]", "half a fi", '{"answers": ["a"]}'):
        path.write_text(content)
        assert names(refusal(ModelError, AnswerVocabulary.load, path), "answers.json")
    assert names(refusal(ModelError, AnswerVocabulary.load, tmp_path / "nowhere.json"), "nowhere.json")
