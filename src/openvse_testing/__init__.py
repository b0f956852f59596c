"""Contract tests for your own parts and data sets, which you call from your own tests.

A check raises ``BrokenContractError``, an ``AssertionError`` with a line for each broken promise::

    from openvse_testing import check_aggregator

    def test_my_pool() -> None:
        check_aggregator(MyPool) check_aggregator(MyPool, options={"temperature": 0.01})

openvse's own parts must keep the same promises.
"""

from openvse_testing.aggregators import check_aggregator
from openvse_testing.contract import BrokenContractError
from openvse_testing.datasets import check_dataset
from openvse_testing.parts import check_part
from openvse_testing.stores import check_store

__all__ = ["BrokenContractError", "check_aggregator", "check_dataset", "check_part", "check_store"]
