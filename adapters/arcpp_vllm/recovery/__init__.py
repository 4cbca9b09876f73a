"""A lost stage costs seconds and no request: noticing, restarting, replaying, and saying so.

`records`, `finite` and `requests` run in the workers, `stages`, `engine`, `replay` and `status`
in the engine's process, `front` in the API server's.
"""
