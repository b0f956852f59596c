"""While a program is traced, symbols stand for sizes, which a check of types would not take for numbers."""

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture(scope="module", autouse=True)
def unchecked() -> Iterator[None]:
    """Switch the checks of shapes and types off."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
