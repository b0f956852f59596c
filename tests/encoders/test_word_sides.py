"""Text sides of the earlier systems: words without context, and a GRU that reads forwards only."""

from pathlib import Path
from typing import Any

import pytest
import torch

from encoders.references import gru_states
from openvse.aggregators import AGGREGATORS
from openvse.encoders import BagOfWords, BiGRU
from openvse.functional import pad

CAPTIONS = ["a dog runs", "the dog", "a"]


def test_a_bag_of_fixed_word_vectors(tmp_path: Path) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("dog 1 2\nruns 3 4\na 5 6\nthe 7 8\n")
    encoder = BagOfWords(embed_dim=2, captions=CAPTIONS, min_count=1, word_dim=2, word_vectors=str(vectors))
    assert not any(weight.requires_grad for weight in encoder.parameters())
    features = encoder(pad(encoder.tokenize(["a dog runs", "the dog"])))
    mean = AGGREGATORS.get("mean")(input_dim=2, embed_dim=2)
    torch.testing.assert_close(mean(features).vectors[:, 0], torch.tensor([[3.0, 4.0], [4.0, 5.0]]))
    encoder.save_assets(tmp_path / "assets")
    again = BagOfWords(embed_dim=2, assets=tmp_path / "assets", word_dim=2)
    assert again.vocabulary.words == encoder.vocabulary.words
    assert encoder.pieces("a cat") == ["a", "<cat>"]


@pytest.mark.parametrize("output", ["contextual", "words"])
def test_a_gru_that_reads_forwards(output: Any) -> None:
    torch.manual_seed(0)
    encoder = BiGRU(embed_dim=5, captions=CAPTIONS, min_count=1, word_dim=4, bidirectional=False, output=output).eval()
    tokens = encoder.tokenize(CAPTIONS)
    features = encoder(pad(tokens))
    for row, ids in enumerate(tokens):
        expected = gru_states(encoder.gru, encoder.words(ids))
        if output == "words":
            torch.testing.assert_close(features.pooled[row], expected[-1])  # type: ignore[index]
        else:
            torch.testing.assert_close(features.local[row, : len(ids)], expected)
    if output == "contextual":
        last = AGGREGATORS.get("last_token")(input_dim=5, embed_dim=5)(features).vectors[:, 0]
        torch.testing.assert_close(last[2], features.local[2, len(tokens[2]) - 1])
