"""The first questions of a newcomer have an answer each, which a search in the site finds by its heading."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_a_question_is_answered_under_its_words() -> None:
    found = {words: [answer for heading, answer in ANSWERS.items() if words in heading] for words in ASKED}
    assert [words for words, answers in found.items() if len(answers) != 1 or ASKED[words] not in answers[0]] == []
    assert [heading for heading, answer in ANSWERS.items() if not re.search(r"\]\(\S+\.md", answer)] == []


def test_every_answer_belongs_to_a_question() -> None:
    assert len(ANSWERS) == len(ASKED) == PAGE.count("\n## ")


def test_the_search_of_the_site_puts_the_answers_first() -> None:
    assert re.match(r"---\nsearch:\n  boost: \d\n---\n", PAGE)
