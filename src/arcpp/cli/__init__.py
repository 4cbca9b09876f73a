"""The ``arcpp`` command. ``main`` is its entry point."""

from __future__ import annotations

from .main import main

__all__ = ["main"]
