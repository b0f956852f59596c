"""What every registered similarity must hold."""

from __future__ import annotations

import pytest

from openvse.similarities import SIMILARITIES
from openvse.testing.similarities import SIMILARITY_PROMISES, made_similarity

# Options without which a part does not fit the width of these embeddings.
OPTIONS = {"fused": {"fusion": {"name": "score_attention", "num_heads": 2}}}


@pytest.mark.medium
@pytest.mark.parametrize("promise", SIMILARITY_PROMISES)
@pytest.mark.parametrize("name", SIMILARITIES)
def test_the_similarity_keeps_its_promises(name: str, promise: str) -> None:
    SIMILARITY_PROMISES[promise](made_similarity(name, OPTIONS.get(name, {})))
