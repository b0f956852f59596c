"""Kernels in Triton for openvse on a GPU."""
