"""What every registered similarity must hold."""

from __future__ import annotations

import pytest

from openvse.similarities import SIMILARITIES
from openvse_testing import check_part

# Options without which a part does not fit the width of these embeddings.
OPTIONS = {"fused": {"fusion": {"name": "score_attention", "num_heads": 2}}}


@pytest.mark.medium
@pytest.mark.parametrize("name", SIMILARITIES)
def test_the_similarity_keeps_its_promises(name: str) -> None:
    check_part(SIMILARITIES, name, options=OPTIONS.get(name, {}))
