"""The query bank that a trained model keeps, in its folder, its export and its indexes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import openvse
from openvse.scoring.hubs import BANK, read_bank


@pytest.mark.medium
def test_a_trained_model_keeps_its_bank_and_an_index_uses_it(trained: Path, tmp_path: Path, invoke) -> None:
    best = trained / "run" / "best"
    model = openvse.load(best)
    bank = read_bank(best)
    assert bank is not None and bank.model == model.fingerprint
    assert (len(bank.images.mask), len(bank.texts.mask)) == (12, 20)
    assert not any(array.dtype.kind in "US" for name, array in np.load(best / BANK).items() if name != "model")
    told = invoke("index", best, trained / "album", "--out", tmp_path / "index", "--json", "-q")
    assert json.loads(told.stdout)["result"]["query_bank"]["source"] == "model", told.output
    with np.load(tmp_path / "index" / BANK) as held:
        assert held["beta"] == bank.texts.beta
        assert np.array_equal(held["vectors"], bank.texts.vectors)
    (tmp_path / "captions.txt").write_text("a red sky\na blue sky\na wide sky\na low sky\n")
    told = invoke("index", best, tmp_path / "captions.txt", "--out", tmp_path / "asked", "--json", "-q")
    assert json.loads(told.stdout)["result"]["query_bank"]["queries"] == 12  # images ask for captions
    with np.load(tmp_path / "asked" / BANK) as held:
        assert held["beta"] == bank.images.beta
        assert np.array_equal(held["vectors"], bank.images.vectors)


@pytest.mark.medium
def test_a_bank_of_other_weights_is_not_carried_along(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "run" / "best", tmp_path / "best")
    model = openvse.load(tmp_path / "best")
    assert model.query_bank is not None
    model.save(tmp_path / "same")
    assert (tmp_path / "same" / BANK).is_file()
    next(model.text.parameters()).data.add_(1)
    assert model.query_bank is None
    model.save(tmp_path / "same")
    assert not (tmp_path / "same" / BANK).exists()
