"""Boltzmann pooling for openvse."""
