"""No message shows a password or a key, however the address that holds it is written."""

from __future__ import annotations

import pickle

import pytest

from openvse.errors import DataError, MissingHalfError, OpenVSEError
from openvse.indexing import Index

SECRET = "Sup3rS3cret"
WORDS = (
    f"host=db.example password={SECRET}",
    f"postgresql:///x?sslpassword={SECRET}&host=/nowhere",
    f"host=db.example password='{SECRET} {SECRET}'",
    f"https://{SECRET}@host",
    f"https:/{SECRET}@host",
    f"postgresql://u:a/{SECRET}@host/db",
    f"postgresql://u:{SECRET}@host/db",
    f"qdrant://host:6333/?api_key={SECRET}",
    f"https://host/x?token={SECRET}&page=2",
)


@pytest.mark.parametrize("word", WORDS)
def test_errors_show_no_secret(word, tmp_path):
    with pytest.raises(OpenVSEError) as caught:
        Index.open(tmp_path / word)
    assert SECRET not in str(caught.value)
    error = pickle.loads(pickle.dumps(DataError(f"{word} cannot be read")))
    assert (type(error), SECRET in str(error)) == (DataError, False)


@pytest.mark.parametrize("text", ["photos/12:30@home.jpg: damaged", "postgresql://me@host/photos", "key=red"])
def test_other_words_stay(text):
    assert str(DataError(text)) == text
    assert pickle.loads(pickle.dumps(MissingHalfError(text, name="torch"))).name == "torch"
