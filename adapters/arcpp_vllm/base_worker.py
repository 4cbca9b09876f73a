"""The platform's own worker class, remembered for the processes that derive from it.

vLLM names worker classes by string and builds them in another process; the name of the class
that vLLM chose travels in the environment.
"""

from __future__ import annotations

import os

_VARIABLE = "ARCPP_VLLM_BASE_WORKER"


def remember(qualified_name: str) -> None:
    """In the executor: the worker class vLLM chose."""
    os.environ[_VARIABLE] = qualified_name


def name() -> str:
    """In a worker: its qualified name. Raises KeyError in any other process."""
    return os.environ[_VARIABLE]
