"""OpenVINO engine: one compiled stage per device.

Nothing is here yet; docs/changelog.md says what has landed.
"""
