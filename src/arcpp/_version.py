"""The one place that holds arcpp's version."""

__version__ = "0.1.0.dev0"
