"""Freed memory is kept for the next tensor."""

import subprocess
import sys

import pytest

_SCRIPT = """
import resource
import torch
from openvse.cli.app import keep_freed_memory

torch.set_num_threads(1)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.ones(8 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert keep_freed_memory()
# How many tensors it takes until a freed block has room for the next one, its alignment included, follows from the
# heap: six to nine were seen. From then on none may cost a page.
faults(), faults()
print(faults())
"""


@pytest.mark.medium
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of the GNU C library")
def test_a_tensor_of_the_same_size_costs_no_new_pages():
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100  # 32 MiB are 8,192 pages, eight times


def test_another_c_library_is_left_alone(monkeypatch):
    from openvse.cli.app import keep_freed_memory

    monkeypatch.setattr("sys.platform", "darwin")
    assert keep_freed_memory() is False
