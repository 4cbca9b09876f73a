"""A stop that ends: the API server does not wait for answers that can no longer come.

Symptom: SIGTERM or Ctrl-C while a request is being answered ends the engine, and then uvicorn
waits for that request's connection for ever ("Waiting for connections to close", 0.32.0, with
the stock executor too): every restart under load needs a SIGKILL. Here uvicorn waits for the
engine's own drain time (``--shutdown-timeout``) and a little longer, then cuts what is left. Can
go when vLLM fails open requests on shutdown or passes a limit to uvicorn itself.
"""

from __future__ import annotations

import functools
from typing import Any

_AFTER_THE_ENGINE_S = 5
_MARK = "_arcpp_bounded"


def bound_shutdown(drain_s: float) -> None:
    """Limit uvicorn's wait for open connections in servers this process makes. Idempotent.

    drain_s: seconds the engine is given to finish requests.
    """
    import uvicorn

    original = uvicorn.Config.__init__
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def bounded(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.timeout_graceful_shutdown is None:
            self.timeout_graceful_shutdown = int(drain_s) + _AFTER_THE_ENGINE_S

    setattr(bounded, _MARK, True)
    uvicorn.Config.__init__ = bounded  # type: ignore[method-assign]
