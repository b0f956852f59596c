"""Images, animations and videos, decoded safely."""

from __future__ import annotations
