"""Inner loops in C, compiled on first use. Each has an equivalent in PyTorch, which a GPU uses.

``OPENVSE_KERNELS=0`` in the environment switches them off.
"""

from __future__ import annotations

from openvse.kernels.build import load_kernel
from openvse.kernels.ranked import LARGEST, is_usable, sort_elements, sum_ranked

__all__ = ["LARGEST", "is_usable", "load_kernel", "sort_elements", "sum_ranked"]
