"""arcpp's tests; see docs/architecture.md for what each folder is for."""
