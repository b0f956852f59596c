"""The conversion of a checkpoint that the code of a paper saved."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from openvse.backbones.pretrained import load_tokenizer
from openvse.conversion.checkpoint import read_checkpoint
from openvse.conversion.convert import Conversion
from openvse.conversion.weights import Weights, expect_fit, expect_own_storage, fill
from openvse.encoders.words_encoder import VOCABULARY_FILE
from openvse.errors import CheckpointError, ModelError, nearest
from openvse.files import read_lines
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.specs.load import apply_override, parse_override, validated
from openvse.specs.model import TwoTowerSpec
from openvse.tokenization.vocabulary import END, MASK, SPECIALS, START, UNKNOWN, Vocabulary
from openvse_papers.released.reading import ReleasedCheckpoint, ReleasedPlan, find_encoders, read_vocabulary
from openvse_papers.released.repositories import REPOSITORIES, bert_config

# Keys of a plan's recipe that are not part of the model's spec.
OF_THE_TRAINING = ("name", "objective", "optimizer")


SPECIAL_WORDS = tuple(SPECIALS[special] for special in (UNKNOWN, START, END))


SPECIAL_PIECES = ("[UNK]", "[CLS]", "[SEP]")


WORDS = "text.encoder.words.weight"


def convert_released(
    path: Path, vocabulary: str | None, repository: str | None, overrides: Sequence[str]
) -> Conversion:
    """Convert a checkpoint of a repository. See ``Converter``."""
    released = find_encoders(read_checkpoint(path))
    name = _which(released, repository)
    each = REPOSITORIES[name]
    plan = each.plan(released, name, each.aggregator, each.pooling)
    progress = ", ".join(f"{key} {value}" for key, value in released.progress.items())
    described = f"converted from {path.name}" + (f" ({progress})" if progress else "")
    return Conversion(name, _build(plan, vocabulary, overrides, described), plan.notes)


def _which(released: ReleasedCheckpoint, repository: str | None) -> str:
    """Return the repository that a checkpoint comes from."""
    names = list(REPOSITORIES)
    if repository is not None and repository not in names:
        raise CheckpointError(
            f"unknown kind {repository!r}{nearest(repository, names)} (allowed: {', '.join(names)})"
        )
    for name in names if repository is None else [repository]:
        if REPOSITORIES[name].recognises(released):
            return name
    of = f"of {repository}" if repository else "of VSE-infinity (GPO), PVSE (PIE-Net) or VSE+2AD (AdPool)"
    raise CheckpointError(
        f"it does not hold weights {of}: give a checkpoint that one of their repositories saved"
    )


def _build(
    plan: ReleasedPlan, vocabulary: str | None, overrides: Sequence[str], description: str
) -> TwoTower:
    """Build the plan's model and fill in every weight."""
    tree: dict[str, Any] = dict(plan.recipe)
    for path, value in map(parse_override, overrides):
        tree = apply_override(tree, path, value)
    stated = {key: tree.pop(key) for key in OF_THE_TRAINING if key in tree}
    spec = validated(TwoTowerSpec, tree)
    expect_own_storage(plan.weights)
    with tempfile.TemporaryDirectory() as folder:
        assets = Path(folder)
        (assets / "text").mkdir()
        write = _write_words if WORDS in plan.weights else _write_pieces
        weights = write(plan, vocabulary, assets / "text", spec.text.encoder.options)
        with torch.device("meta"):  # only names and shapes, without memory
            expect_fit(weights, build_model(spec, assets=assets).state_dict())
        model = build_model(spec, assets=assets)
    fill(model, weights)
    model.provenance = {"recipe": stated.pop("name"), "description": description, **stated}
    return model.eval()


def _write_words(
    plan: ReleasedPlan, vocabulary: str | None, folder: Path, options: Mapping[str, Any]
) -> Weights:
    """Write the vocabulary of a plan, and return its weights with the word embeddings in this order."""
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
            f"{vocabulary} has {len(words)} words, but the model has {len(embedded)}: give the vocabulary of its "
            f"training (in the repository: {plan.vocabulary})"
        )
    needed = SPECIAL_WORDS if options.get("boundaries", True) is not False else SPECIAL_WORDS[:1]
    _expect_specials(vocabulary, ids, needed, plan.vocabulary)
    own = [word for word in ids if word not in SPECIALS]
    Vocabulary(own).save(folder / VOCABULARY_FILE)
    none = torch.zeros_like(embedded[0])  # a vocabulary can lack the padding, and PVSE's lack the mask
    rows = [embedded[ids[word]] if word in ids else none for word in (*SPECIALS, *own)]
    return plan.weights | {WORDS: torch.stack(rows)}


def _write_pieces(
    plan: ReleasedPlan, vocabulary: str | None, folder: Path, options: Mapping[str, Any]
) -> Weights:
    """Write the tokenizer of a plan's BERT and its configuration, and return its weights."""
    config = bert_config(plan.weights)
    source = vocabulary or plan.vocabulary
    if Path(source).is_file():
        try:
            pieces = read_lines(Path(source))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{source} is not a list of word pieces ({error}): give the vocab.txt of the model's BERT"
            ) from error
        # An uncased model drops accents and capitals. Its name contains "uncased".
        described = {"tokenizer_class": "BertTokenizer", "do_lower_case": "uncased" in plan.vocabulary}
        (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(described))
    else:
        pieces = _copy_tokenizer(source, plan.vocabulary, folder)
    if len(pieces) != config["vocab_size"]:
        raise CheckpointError(
            f"{source} has {len(pieces)} word pieces, but the model has {config['vocab_size']}: give the vocab.txt of "
            f"{plan.vocabulary} with --vocabulary"
        )
    _expect_specials(source, pieces, SPECIAL_PIECES, plan.vocabulary)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return plan.weights


def _expect_specials(source: str, known: Container[str], needed: Sequence[str], place: str) -> None:
    if missing := [special for special in needed if special not in known]:
        raise CheckpointError(
            f"{source} has no {', '.join(missing)}, without which captions cannot be read: give the vocabulary that "
            f"the model was trained with ({place})"
        )


def _copy_tokenizer(source: str, needed: str, folder: Path) -> list[str]:
    try:
        tokenizer = load_tokenizer(source)
    except ModelError as error:
        raise CheckpointError(
            f"{error}, or give the vocab.txt of {needed} with --vocabulary, because the checkpoint does not hold it"
        ) from error
    tokenizer.save_pretrained(folder)
    return list(tokenizer.get_vocab())
