"""Measurements: ``make bench`` runs them all and rewrites docs/benchmarks.md.

No test asserts a time; what is compared is measured side by side in one run.
"""
