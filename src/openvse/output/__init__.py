"""What is written for people: documents and pages."""

from __future__ import annotations
