"""The conversion of a released checkpoint or a published dual encoder to a model folder, once for each short name."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from openvse.backbones.pretrained import load_tokenizer
from openvse.conversion.checkpoint import (
    ReleasedCheckpoint,
    ReleasedPlan,
    find_encoders,
    read_checkpoint,
    read_vocabulary,
)
from openvse.conversion.dual_encoders import convert_dual
from openvse.conversion.dual_files import is_hub_id, open_model
from openvse.conversion.published import PUBLISHED
from openvse.conversion.repositories import REPOSITORIES, bert_config
from openvse.conversion.weights import Weights, expect_fit, expect_own_storage, fill
from openvse.encoders.words_encoder import VOCABULARY_FILE
from openvse.errors import CheckpointError, ModelError, nearest
from openvse.files import is_free, locked, read_lines, settle, user_cache
from openvse.model.folder import CONFIG
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.specs.load import apply_override, parse_override, validated
from openvse.specs.model import TwoTowerSpec
from openvse.tokenization.vocabulary import END, MASK, SPECIALS, START, UNKNOWN, Vocabulary

CACHE_VARIABLE = "OPENVSE_CACHE"
"""The environment variable that sets another folder for converted models."""

# Keys of a plan's recipe that are not part of the model's spec.
OF_THE_TRAINING = ("name", "objective", "optimizer")
SPECIAL_WORDS = tuple(SPECIALS[special] for special in (UNKNOWN, START, END))
SPECIAL_PIECES = ("[UNK]", "[CLS]", "[SEP]")
WORDS = "text.encoder.words.weight"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion. ``repository`` is a name of ``REPOSITORIES``, or a dual encoder's architecture."""

    repository: str
    model: TwoTower
    notes: tuple[str, ...]


def convert(
    checkpoint: str | Path,
    out: str | Path,
    *,
    vocabulary: str | Path | None = None,
    repository: str | None = None,
    overrides: Sequence[str] = (),
) -> Conversion:
    """Convert a checkpoint of VSE-infinity, PVSE or VSE+2AD, or a dual encoder, to a model folder of equal embeddings.

    No code in the files is run. Checksums, options, names, shapes and number types are verified before a weight is
    copied. The folder appears only when it is complete: every weight has its place and is finite.

    Args:
        checkpoint: the file that the training of a repository saved, or a dual encoder of ``transformers`` or OpenCLIP:
            a folder with its files, a hub id, or a short name of ``PUBLISHED``.
        out: the model folder. It must be empty or not exist.
        vocabulary: the file of the model's words in training, or the tokenizer of its text model. A dual encoder brings
            its own.
        repository: a name of ``REPOSITORIES``. None recognises the repository by the weights.
        overrides: settings of the recipe that a file does not contain, as ``key.path=value``.

    Raises:
        CheckpointError: the file cannot be read, is damaged, belongs to another project, holds numbers that are not
            finite or options that are not plausible, or cannot be represented in openvse.
        RecipeError: an override is not of the form ``key.path=value``.
    """
    folder = Path(out)
    if not is_free(folder, CONFIG):
        raise CheckpointError(f"{folder} exists: choose a new folder for the model")
    source = PUBLISHED[str(checkpoint)].source if str(checkpoint) in PUBLISHED else str(checkpoint)
    path, words = Path(source), None if vocabulary is None else str(vocabulary)
    try:
        if repository is None and (path.is_dir() or (not path.exists() and is_hub_id(source))):
            done = Conversion(*convert_dual(open_model(source), tokenizer=words, overrides=overrides), ())
        else:
            done = _convert_released(path, words, repository, overrides)
    except (CheckpointError, ModelError) as error:  # the latter if a part of the model cannot be loaded
        raise CheckpointError(str(error) if source in str(error) else f"{source}: {error}") from error
    done.model.save(folder)
    return done


def published_folder(name: str) -> Path | None:
    """Return the model folder of a short name, which the first call converts, or None for any other name."""
    if name not in PUBLISHED:
        return None
    cache = Path(os.environ.get(CACHE_VARIABLE) or user_cache()).expanduser()
    folder = cache / "models" / name / "model"
    if settle(folder, CONFIG):
        return folder
    source = PUBLISHED[name].source
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent, "converted model", ModelError):
        if not settle(folder, CONFIG):
            _logger.warning("%s: %s is converted once, into %s", name, source, folder)
            try:
                convert(source, folder)
            except CheckpointError as error:
                raise ModelError(f"{name} is {source}, which cannot be used: {error}") from error
    return folder


def _convert_released(
    path: Path, vocabulary: str | None, repository: str | None, overrides: Sequence[str]
) -> Conversion:
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
