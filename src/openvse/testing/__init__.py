"""Contract tests for your own parts and data sets, which you call from your own tests.

A check raises ``BrokenContractError``, an ``AssertionError`` with a line for each broken promise::

    from openvse.testing import check_aggregator

    def test_my_pool() -> None:
        check_aggregator(MyPool) check_aggregator(MyPool, options={"temperature": 0.01})

openvse's own parts must keep the same promises.
"""

from openvse.testing.aggregators import check_aggregator
from openvse.testing.contract import BrokenContractError
from openvse.testing.datasets import check_dataset
from openvse.testing.parts import check_part
from openvse.testing.stores import check_store

__all__ = ["BrokenContractError", "check_aggregator", "check_dataset", "check_part", "check_store"]
