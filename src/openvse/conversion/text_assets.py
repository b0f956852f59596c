"""Writes the words or word pieces of a released model as the files that the text encoder of openvse reads."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from pathlib import Path

import torch
from torch import Tensor

from openvse.backbones.pretrained import load_or_explain
from openvse.conversion.checkpoint import Plan
from openvse.conversion.checkpoint_file import read_vocabulary
from openvse.conversion.networks import bert_config
from openvse.conversion.weights import Weights
from openvse.encoders.vocabulary import END, MASK, SPECIALS, START, UNKNOWN, Vocabulary
from openvse.encoders.words_encoder import VOCABULARY_FILE
from openvse.errors import CheckpointError, ModelError

SPECIAL_WORDS = tuple(SPECIALS[special] for special in (UNKNOWN, START, END))
SPECIAL_PIECES = ("[UNK]", "[CLS]", "[SEP]")
WORDS = "text.encoder.words.weight"


def write_text_assets(
    plan: Plan, vocabulary: str | None, folder: Path, *, boundaries: bool = True
) -> Weights:
    """Write a vocabulary or a tokenizer, and return the weights with word embeddings in its order.

    Args:
        plan: the plan for the checkpoint.
        vocabulary: the file of the words that the model was trained with; for BERT its ``vocab.txt``, or the folder or
            hub id of its tokenizer.
        folder: the folder for the assets of the text encoder.
        boundaries: whether captions get a start and an end token, which a vocabulary of words must then have.

    Raises:
        CheckpointError: the vocabulary does not exist, has another number of words than the model, or lacks the unknown
            word or another special word.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if WORDS in plan.weights:
        return _write_words(plan, vocabulary, folder, SPECIAL_WORDS if boundaries else SPECIAL_WORDS[:1])
    _write_pieces(plan, vocabulary, folder)
    return plan.weights


def _write_words(plan: Plan, vocabulary: str | None, folder: Path, needed: Sequence[str]) -> Weights:
    if vocabulary is None:
        raise CheckpointError(
            f"the words of the model are not in its checkpoint: give its vocabulary with --vocabulary "
            f"(in the repository: {plan.vocabulary})"
        )
    words, embedded = read_vocabulary(Path(vocabulary)), plan.weights[WORDS]
    ids = {word: row for row, word in enumerate(words)}
    if len(embedded) == len(words) + 1:  # the training scripts append the mask to the words of the file
        ids.setdefault(SPECIALS[MASK], len(words))
    if len(embedded) != len(ids):
        raise CheckpointError(
            f"{vocabulary} has {len(words)} words, but the model {len(embedded)}: give the vocabulary that it was "
            f"trained with (in the repository: {plan.vocabulary})"
        )
    _expect_specials(vocabulary, ids, needed, plan.vocabulary)
    own = [word for word in ids if word not in SPECIALS]
    Vocabulary(own).save(folder / VOCABULARY_FILE)
    return plan.weights | {WORDS: torch.stack([_row(embedded, ids, word) for word in (*SPECIALS, *own)])}


def _row(embedded: Tensor, ids: dict[str, int], word: str) -> Tensor:
    """Return the embedding of a word, or zeros: a vocabulary can lack the padding, and those of PVSE lack the mask."""
    return embedded[ids[word]] if word in ids else torch.zeros_like(embedded[0])


def _write_pieces(plan: Plan, vocabulary: str | None, folder: Path) -> None:
    config = bert_config(plan.weights)
    source = vocabulary or plan.vocabulary
    if Path(source).is_file():
        pieces = _read_pieces(Path(source))
        # An uncased model drops accents and capitals; its name contains "uncased".
        described = {"tokenizer_class": "BertTokenizer", "do_lower_case": "uncased" in plan.vocabulary}
        (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(described))
    else:
        pieces = _copy_tokenizer(source, plan.vocabulary, folder)
    if len(pieces) != config["vocab_size"]:
        raise CheckpointError(
            f"{source} has {len(pieces)} word pieces, but the model {config['vocab_size']}: give the vocab.txt of "
            f"{plan.vocabulary} with --vocabulary"
        )
    _expect_specials(source, pieces, SPECIAL_PIECES, plan.vocabulary)
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def _read_pieces(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8") as file:
            return [line.rstrip("\n") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path} is not a list of word pieces ({error}): give the vocab.txt of the model's BERT"
        ) from error


def _expect_specials(source: str, known: Container[str], needed: Sequence[str], place: str) -> None:
    missing = [special for special in needed if special not in known]
    if missing:
        raise CheckpointError(
            f"{source} has no {', '.join(missing)}, without which captions cannot be read: give the vocabulary that "
            f"the model was trained with ({place})"
        )


def _copy_tokenizer(source: str, needed: str, folder: Path) -> list[str]:
    from transformers import AutoTokenizer

    try:
        tokenizer = load_or_explain(
            lambda: AutoTokenizer.from_pretrained(source), what="the tokenizer", source=source
        )
    except ModelError as error:
        raise CheckpointError(
            f"{error}; or give the vocab.txt of {needed} with --vocabulary, because the checkpoint does not hold it"
        ) from error
    tokenizer.save_pretrained(folder)
    return list(tokenizer.get_vocab())
