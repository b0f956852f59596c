"""The first questions of a newcomer have an answer each, which a search in the site finds by its heading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "questions.md").read_text()
ANSWERS = dict(re.findall(r"^## (.*)\n\n((?:.+\n)+)", PAGE, flags=re.MULTILINE))
ASKED = {
    "margin": "criterion.margin",
    "warm-up": "warmup_epochs",
    "RSUM": "evaluation/metrics.py",
    "resizing": "image_size",
    "AdOpt": "adaptive_top_k",
    "new data set": "data.md#a-data-set-of-your-own",
    "new pooling": "add_a_part.md",
    "my own loop": "parts.md#train-a-model-of-parts-in-your-own-loop",
    "my own embeddings": "openvse.evaluate(images, texts)",
    "trust": "--min-precision",
    "collapse": "all scores are the same",
}


@pytest.mark.parametrize("words", ASKED)
def test_a_question_is_answered_under_its_words(words: str) -> None:
    (heading,) = (heading for heading in ANSWERS if words in heading)
    answer = ANSWERS[heading]
    assert ASKED[words] in answer
    assert re.search(r"\]\(\S+\.md", answer) and len(answer.splitlines()) <= 3


def test_every_answer_belongs_to_a_question() -> None:
    assert len(ANSWERS) == len(ASKED) == PAGE.count("\n## ")


def test_the_search_of_the_site_puts_the_answers_first() -> None:
    assert re.match(r"---\nsearch:\n  boost: \d\n---\n", PAGE)
