"""Training from a store that is larger than the memory it may use."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from openvse.features.extract import FeatureStoreWriter

ITEMS, CELLS, WIDTH = 5_000, 49, 1_280
ALLOWED_MIB = 320  # beyond what the imports need; the store holds 600

TRAIN = """
import resource, sys
from pathlib import Path
import numpy as np
import torch
from openvse.tasks.recipes import parse_recipe
from openvse.tasks.run import run_recipe

folder, allowed = Path(sys.argv[1]), int(sys.argv[2]) << 20
torch.set_num_threads(1)
recipe = parse_recipe({
    "name": "memory", "embed_dim": 16,
    "image": {"encoder": {"name": "precomputed", "feature_dim": 1280, "projection": "linear"}, "aggregator": "mean"},
    "text": {"encoder": {"name": "bigru", "word_dim": 8, "min_count": 1}, "aggregator": "mean"},
    "objective": {"ranking": {"name": "contrast", "miner": "hardest", "criterion": "hinge"}},
    "data": {"source": str(folder / "pairs.csv"), "features": str(folder / "features")},
    "training": {"batch_size": 64, "device": "cpu", "phases": [{"epochs": 1}]},
})
used = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + allowed, used + allowed))
try:
    np.load(folder / "features" / "features.npy")
except MemoryError:
    print("too large")
print(run_recipe(recipe, folder / "run").progress.global_step)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 600 MiB whose items are views of one random block, and a caption each."""
    target = tmp_path_factory.mktemp("large")
    block = torch.randn(CELLS + 97, WIDTH).half()
    lines = ["file_name,caption,split"]
    with FeatureStoreWriter(target / "features", fingerprint="large", dim=WIDTH) as writer:
        for number in range(ITEMS):
            writer.add(f"{number}.jpg", block[number % 97 : number % 97 + CELLS])
            lines.append(
                f"{number}.jpg,thing {number % 89} by {number % 83},{'train' if number > 99 else 'validation'}"
            )
    (target / "pairs.csv").write_text("\n".join(lines) + "\n")
    return target


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the limit is Linux's")
def test_memory_does_not_grow_with_the_store(folder: Path) -> None:
    assert (folder / "features" / "features.npy").stat().st_size > 1.5 * (ALLOWED_MIB << 20)
    command = [sys.executable, "-c", TRAIN, str(folder), str(ALLOWED_MIB)]
    trained = subprocess.run(command, capture_output=True, text=True, check=False)
    assert trained.returncode == 0, trained.stderr[-2000:]
    assert trained.stdout.startswith("too large\n")  # the limit is real: the store does not fit into it
    assert int(trained.stdout.split()[-1]) == (ITEMS - 100) // 64
