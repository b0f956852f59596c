"""Functions of a text encoder for the tokenizer of a pretrained text model."""

from __future__ import annotations

from typing import Any

from openvse.backbones.installed import model_source
from openvse.backbones.pretrained import load_or_explain
from openvse.errors import RecipeError

WORD_PIECE_MARK = "##"


def continuing_pieces(tokenizer: Any) -> list[int]:
    """Return the ids of the pieces that continue a word, which WordPiece marks."""
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    continuing = [index for index, piece in enumerate(pieces) if piece.startswith(WORD_PIECE_MARK)]
    if not continuing:
        raise RecipeError(
            f"augment is 'words', but the tokenizer does not mark the pieces that continue a word with "
            f"{WORD_PIECE_MARK!r}: set augment: pieces, or use a model with a WordPiece tokenizer such as BERT's"
        )
    return continuing


def special_ends(tokenizer: Any) -> tuple[int, int]:
    """Return the numbers of special tokens that a tokenizer adds before and after every text."""
    special: list[int] = tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
    if 0 not in special:
        return len(special), 0
    return special.index(0), special[::-1].index(0)


def load_tokenizer(source: str) -> Any:
    """Load the tokenizer of a hub id, a folder or ``package:NAME``.

    Raises:
        ModelError: the tokenizer cannot be loaded.
    """
    from transformers import AutoTokenizer

    place = model_source(source)
    return load_or_explain(lambda: AutoTokenizer.from_pretrained(place), what="the tokenizer", source=source)
