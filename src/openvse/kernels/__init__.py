"""Inner loops in C and in Triton, compiled on first use; every one has an equivalent in PyTorch.

``OPENVSE_KERNELS=0`` in the environment switches them off. Those for a GPU are used with ``OPENVSE_KERNELS=triton``.
"""

from __future__ import annotations

from openvse.kernels.build import load_kernel
from openvse.kernels.ranked import is_usable, sort_elements, sum_ranked
from openvse.kernels.ranked_c import LARGEST

__all__ = ["LARGEST", "is_usable", "load_kernel", "sort_elements", "sum_ranked"]
