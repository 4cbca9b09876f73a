"""``python -m arcpp_vllm.doctor_check``: is this vLLM one we know? For ``arcpp doctor``.

In a process of its own, because importing a broken vLLM may crash. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys

from . import compat


def main() -> int:
    """Print version, supported range and what is missing."""
    lacking = compat.missing(compat.REGISTRATION + compat.EXECUTION)
    answer = {
        "version": compat.vllm_version(),
        "supported": compat.SUPPORTED,
        "missing": list(lacking),
    }
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
