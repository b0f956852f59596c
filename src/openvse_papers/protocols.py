"""The test protocols under which figures of the papers are published, which ``protocols.yaml`` lists."""

from __future__ import annotations

from importlib.resources import files

from openvse.evaluation.report import read_protocols

PROTOCOLS = read_protocols(files("openvse_papers").joinpath("protocols.yaml").read_text(encoding="utf-8"))
"""All protocols by name."""
