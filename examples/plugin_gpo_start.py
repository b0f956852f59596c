"""GPO that starts as k-max pooling: how to change one step of a pooling that is there.

openvse --plugin examples/plugin_gpo_start.py train vse_infinity/folder_cpu image.aggregator=gpo_from_k_max ...

docs/studies/evidence.md says what became of it on Flickr8k.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from openvse.aggregators import AGGREGATORS, GPO
from openvse_testing import check_aggregator


class GPOFromKMax(GPO):
    """GPO whose logits are lower by ``lead`` from the element after the k-th on; training can undo it.

    Args:
        input_dim: L.
        embed_dim: D = L.
        k: the number of values that lead.
        lead: by how much; 0 is GPO, and a large one k-max.
        temperature: see GPO.
    """

    def __init__(
        self, *, input_dim: int, embed_dim: int, k: int = 5, lead: float = 4.0, temperature: float = 0.1
    ) -> None:
        super().__init__(input_dim=input_dim, embed_dim=embed_dim, temperature=temperature)
        self.k, self.lead = k, lead

    def logits(self, sizes: Int[Tensor, "U"]) -> Float[Tensor, "U C N"]:
        """Lower those of all but the k largest."""
        logits = super().logits(sizes)
        return logits - self.lead * (torch.arange(logits.shape[-1], device=logits.device) >= self.k)


AGGREGATORS.add("gpo_from_k_max", GPOFromKMax)


def test_gpo_from_k_max() -> None:
    """Check what every aggregator promises, and that the k largest values have all the weight if the lead is large."""
    check_aggregator("gpo_from_k_max")
    theta = GPOFromKMax(input_dim=4, embed_dim=4, k=2, lead=100.0).coefficients(torch.tensor([2, 7]))
    torch.testing.assert_close(theta[:, :2].sum(dim=1), torch.ones(2))


if __name__ == "__main__":
    test_gpo_from_k_max()
    with torch.no_grad():
        theta = GPOFromKMax(input_dim=4, embed_dim=4).coefficients(torch.tensor([10]))[0]
    print([round(value, 2) for value in theta.tolist()])
