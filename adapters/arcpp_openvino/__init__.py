"""OpenVINO engine: one compiled stage per device. Nothing is here yet; see docs/changelog.md for what has landed."""
