"""Papers, one file each: everything that only this paper's method needs."""

from __future__ import annotations

PARTS: dict[str, dict[str, str]] = {}
"""Slot → method → where it is defined."""
