"""Recipes by method and data set: ``boltzmann/folder_cpu.yaml`` is trained as ``boltzmann/folder_cpu``."""
