"""Inner loops in C, compiled on first use. Each has an equivalent in PyTorch, which a GPU uses.

``OPENVSE_KERNELS=0`` in the environment switches them off.
"""
