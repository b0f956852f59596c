"""Features of strangers: pipes, links to other files, links that lead back, and rows without end."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest

from openvse.errors import DataError
from openvse.features.entries import import_features
from tests.naming import refusal

pytestmark = pytest.mark.medium


def a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "a.npy")


def a_pipe_in_a_folder(folder: Path) -> None:
    (folder / "a.npy").mkdir()
    os.mkfifo(folder / "a.npy" / "b.npy")


def a_link_to_a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with h5py.File(folder / "a.h5", "w") as file:
        for name in ("item/features", "other"):
            file[name] = h5py.ExternalLink("pipe", "/")


def groups_of_groups(folder: Path) -> None:
    with h5py.File(folder / "a.h5", "w") as file:
        groups = [file.create_group(f"g{number}") for number in range(8)]
        for outer, inner in pairwise(groups):
            for number in range(30):
                outer[f"c{number}"] = inner
        groups[-1]["item"] = np.ones((2, 3), np.float32)


def a_vast_row(folder: Path) -> None:
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("features", (2, 1 << 22, 2048), "f4", chunks=(1, 1024, 2048))
        file["ids"] = ["a", "b"]


def a_long_id(folder: Path) -> None:
    with h5py.File(folder / "a.h5", "w") as file:
        file["features"], file["ids"] = np.ones((1, 2, 3), np.float32), ["x" * 5000]


MADE = (a_pipe, a_pipe_in_a_folder, a_link_to_a_pipe, groups_of_groups, a_vast_row, a_long_id)


@pytest.mark.parametrize("make", MADE)
def test_features_that_lead_elsewhere_or_never_end_are_refused(make, tmp_path: Path) -> None:
    make(tmp_path)
    (source,) = tmp_path.glob("a.*")
    began = time.process_time()
    assert len(refusal(DataError, import_features, source, tmp_path / "store")) < 400 + 2 * len(str(source))
    assert time.process_time() - began < 2
