"""A pooling of your own as a plug-in, with its contract test.

In every command: openvse --plugin examples/plugin_pooling.py train vse_infinity/folder_cpu image.aggregator=power
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

import openvse
from openvse.aggregators import AGGREGATORS, Pooling
from openvse.errors import RecipeError
from openvse_testing import check_aggregator


class Power(Pooling):
    """Weigh the elements by a power of their size: ``v = sum_n w_n x_n``, ``w_n`` proportional to ``|x_n|^power``.

    Args:
        input_dim: L.
        embed_dim: D = L.
        power: 0 is the mean; the larger it is, the nearer to the element of the largest absolute value.

    Raises:
        RecipeError: the power is negative.
    """

    def __init__(self, *, input_dim: int, embed_dim: int, power: float = 1.0) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim)
        if power < 0:
            raise RecipeError(f"power is {power}: it must be 0 or more (usual: 1)")
        self.power = power

    def pool(self, local: Float[Tensor, "B N L"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        """Pool the real elements; the padding may hold anything, also NaN."""
        padding = ~mask.unsqueeze(-1)
        real = local.masked_fill(padding, 0.0)
        weights = (real.abs() + 1e-6).pow(self.power).masked_fill(padding, 0.0)
        return (weights * real).sum(dim=1) / weights.sum(dim=1)


AGGREGATORS.add("power", Power)


def test_power() -> None:
    """Check what every aggregator promises, and one value by hand."""
    check_aggregator("power", options={"power": 2.0})
    pooled = openvse.pooling({"name": "power", "power": 1.0}, dim=1)(torch.tensor([[[1.0], [3.0]]]))
    torch.testing.assert_close(pooled, torch.tensor([[2.5]]))


if __name__ == "__main__":
    test_power()
    print(openvse.pooling("power", dim=4)(torch.randn(2, 5, 4)))
