"""OVMS Python node and graph writer. Nothing is here yet; see docs/changelog.md for what has landed."""
