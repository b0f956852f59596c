"""The text tower of a model as a ``SentenceTransformer``."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np

from openvse.errors import ModelError
from openvse.exporting.checking import Difference, difference, without_warnings
from openvse.exporting.reading import PROBES
from openvse.files import replacing_files
from openvse.model import TwoTower

TOLERANCE = 1e-5


def export_sentences(model: TwoTower, folder: Path) -> Difference:
    """Write the text tower as a folder that ``SentenceTransformer(folder, trust_remote_code=True)`` loads.

    Raises:
        ModelError: the library is not installed, the tower makes several embeddings of a sentence, or the written model
            does not give the embeddings of the tower.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ModelError(
            "the format sentence_transformers needs the library: pip install 'openvse[sentence-transformers]'"
        ) from error
    from openvse.sentences import TextTower

    spec = model.spec.model_dump(mode="json")
    tower = copy.deepcopy(model.text).cpu()
    with replacing_files(folder, last=("modules.json",)) as partial:
        module = TextTower(tower, _text_spec(spec), int(spec["embed_dim"]))
        SentenceTransformer(modules=[module], device="cpu").save(str(partial))
        loaded: Any = SentenceTransformer(str(partial), trust_remote_code=True, device="cpu")
        sentences = list(PROBES[:-1])
        with without_warnings():
            ours = model.encode_text(sentences).vectors.numpy()
        theirs = np.asarray(loaded.encode(sentences, show_progress_bar=False))[:, None]
        found = difference("sentences", ours, theirs)
        if not found.largest <= TOLERANCE:
            raise ModelError(
                f"the written SentenceTransformer gives embeddings that differ from those of the model by "
                f"{found.largest:.1e} (allowed: {TOLERANCE:g}), so it is not written: report it"
            )
    return found


def _text_spec(spec: dict[str, Any]) -> Any:
    from openvse.specs import TowerSpec

    return TowerSpec.model_validate(spec["text"])
