"""A vocabulary without the special tokens that captions are read with is refused."""

import pickle
from pathlib import Path
from typing import Any

import pytest

import openvse
import tiny_checkpoints as tiny
from openvse.conversion.convert import convert
from openvse.errors import CheckpointError
from openvse_papers.released import read_vocabulary
from tests.naming import names


def without(*specials: str) -> tuple[str, ...]:
    """Return the words, with others of the same number in place of some."""
    return tuple(f"word{i}" if word in specials else word for i, word in enumerate(tiny.WORDS))


def refusal(checkpoint: dict[str, Any], vocabulary: Path, out: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        convert(tiny.save(checkpoint, vocabulary.with_name("model.pth")), out, vocabulary=vocabulary)
    assert "\n" not in str(error.value)
    assert not out.exists()
    return str(error.value)


@pytest.mark.parametrize("make", [tiny.vse_infinity, tiny.pvse, tiny.vse_2ad])
@pytest.mark.parametrize("special", ["<unk>", "<start>", "<end>"])
def test_words_without_a_special_one_are_refused(tmp_path: Path, make: Any, special: str) -> None:
    vocabulary = tiny.write_vocabulary(tmp_path / "vocab.json", without(special))
    message = refusal(make(), vocabulary, tmp_path / "out")
    assert names(message, "vocab.json", special)
    assert "vocabulary" in message


def test_the_word_that_is_taken_for_the_mask_is_not_the_unknown_one(tmp_path: Path) -> None:
    words = tuple(word for word in tiny.WORDS if word != "<unk>")  # one fewer than PVSE's model has
    vocabulary = tiny.write_vocabulary(tmp_path / "vocab.json", words)
    assert "has no <unk>" in refusal(tiny.pvse(), vocabulary, tmp_path / "out")


def test_a_model_without_boundaries_needs_the_unknown_word_alone(tmp_path: Path) -> None:
    path = tiny.save(tiny.vse_infinity(), tmp_path / "model.pth")
    vocabulary = tiny.write_vocabulary(tmp_path / "vocab.json", without("<start>", "<end>", "<pad>"))
    convert(path, tmp_path / "out", vocabulary=vocabulary, overrides=["text.encoder.boundaries=false"])
    assert openvse.load(tmp_path / "out").text.encoder.tokenize(["zebra"])[0].tolist() == [1]


@pytest.mark.parametrize("special", ["[UNK]", "[CLS]", "[SEP]"])
def test_word_pieces_without_a_special_one_are_refused(tmp_path: Path, special: str) -> None:
    pieces = ["other" if piece == special else piece for piece in tiny.PIECES]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    message = refusal(tiny.vse_infinity(text="bert"), tmp_path / "vocab.txt", tmp_path / "out")
    assert names(message, "vocab.txt", special)


def test_word_pieces_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe[PAD]\n")
    message = refusal(tiny.vse_infinity(text="bert"), tmp_path / "vocab.txt", tmp_path / "out")
    assert "vocab.txt" in message


@pytest.mark.medium
def test_a_word_piece_may_be_any_character_but_a_line_feed(tmp_path: Path) -> None:
    pieces = ["\u2028" if piece == "cat" else piece for piece in tiny.PIECES]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    path = tiny.save(tiny.vse_infinity(text="bert"), tmp_path / "model.pth")
    model = convert(path, tmp_path / "out", vocabulary=tmp_path / "vocab.txt").model
    assert model.text.encoder.tokenize(["mat"])[0].tolist()[1] == tiny.PIECES.index("mat")


def test_words_of_a_pickle_that_are_numbers_become_text(tmp_path: Path) -> None:
    path = tmp_path / "vocab.pkl"
    path.write_bytes(pickle.dumps({"word2idx": {"<unk>": 1, 7: 0}}))
    assert read_vocabulary(path) == ["7", "<unk>"]
