"""OVMS Python node and graph writer.

Nothing is here yet; docs/changelog.md says what has landed.
"""
