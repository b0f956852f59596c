"""What a run says of the words of its captions."""

from __future__ import annotations

from pathlib import Path

import pytest

from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe
from tests.tiny import Recorder, read_metrics, tiny_tree, write_tiny_corpus


def vocabulary_notes(watcher: Recorder) -> list[str]:
    return [note for note in watcher.notes if note.startswith("vocabulary")]


@pytest.mark.medium
def test_the_words_that_the_vocabulary_leaves_out_are_counted_once(tmp_path: Path) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus")
    lines = (corpus / "tiny.csv").read_text().splitlines()
    lines[1] = "000.jpg,an unheard-of marmoset,train"
    (corpus / "tiny.csv").write_text("\n".join(lines) + "\n")
    tree = tiny_tree(corpus)
    tree["text"]["encoder"]["min_count"] = 2
    watcher = Recorder()
    run_recipe(parse_recipe(tree), tmp_path / "run", watcher=watcher)
    said = "vocabulary: 12 of 16 words kept (min_count 2); 1.6 % of the caption tokens are unknown words"
    assert vocabulary_notes(watcher) == [said]
    (record,) = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "vocabulary"]
    names = ("num_words", "num_known", "num_tokens", "num_unknown")
    assert [record[name] for name in names] == [16, 12, 256, 4]
    run_recipe(parse_recipe(tree), tmp_path / "run", watcher=watcher, resume=True)
    assert vocabulary_notes(watcher) == [said, said]
    assert [record["kind"] for record in read_metrics(tmp_path / "run")].count("vocabulary") == 1
