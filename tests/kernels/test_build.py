"""A kernel is compiled once, only read if nobody else can have written it, and absent if it cannot be compiled."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from openvse.functional import sort_descending
from openvse.kernels.ranked import SWITCH, is_usable, load_kernel

requires_compiler = pytest.mark.skipif(load_kernel("ranked") is None, reason="no C compiler is installed")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    load_kernel.cache_clear()
    yield tmp_path / "openvse" / "kernels"
    load_kernel.cache_clear()


@requires_compiler
@pytest.mark.medium
def test_it_is_compiled_once_and_others_cannot_write_it(own_cache: Path) -> None:
    assert load_kernel("ranked") is not None
    (made,) = own_cache.iterdir()
    assert made.stat().st_mode & 0o077 == 0 and own_cache.stat().st_mode & 0o077 == 0
    first = made.stat().st_mtime_ns
    load_kernel.cache_clear()
    assert load_kernel("ranked") is not None and made.stat().st_mtime_ns == first
    made.chmod(0o666)
    load_kernel.cache_clear()
    assert load_kernel("ranked") is not None
    assert made.stat().st_mtime_ns != first and made.stat().st_mode & 0o022 == 0


@pytest.mark.parametrize(
    "settings", [{SWITCH: "0"}, {"CC": "false"}, {"CC": "/no/such/compiler"}, {"XDG_CACHE_HOME": "/proc/nowhere"}]
)
def test_without_it_pytorch_sorts(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    local = torch.randn(2, 5, 3)
    assert load_kernel("ranked") is None and not is_usable(local)
    rows = sort_descending(local, torch.ones(2, 5, dtype=torch.bool))
    assert torch.equal(rows, local.transpose(1, 2).sort(dim=2, descending=True).values)
