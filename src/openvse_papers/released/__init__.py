"""Checkpoints of the repositories of VSE-infinity, ESA, VSE+2AD and PVSE as models of openvse."""
