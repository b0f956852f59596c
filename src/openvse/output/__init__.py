"""Documents and web pages for people to read."""

from __future__ import annotations
