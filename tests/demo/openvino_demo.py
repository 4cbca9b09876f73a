"""``make demo-openvino``: the bundled model as OpenVINO IR, on two CPU stages, for OpenAI clients.

Starts ``arcpp gateway``, prints the plan, streams an answer to the official client, and stops the
server. Exit code 0 only if all of that worked.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import openai
from rich.console import Console

from tests.support.vllm_server import free_port

MODEL = "tests/models/kjv-hybrid-8l/ov"
ROOT = Path(__file__).resolve().parents[2]
DEVICES = ("--device", "CPU", "--device", "CPU")
PROMPT = "In the beginning God"


def main() -> int:
    """Run the demonstration; exit code."""
    console, port = Console(), free_port()
    arcpp = str(Path(sys.executable).with_name("arcpp"))
    plan = (MODEL, "--host", "openvino", "--device", "cpu", "--device", "cpu")
    _show(console, [arcpp, "plan", *plan, "--max-model-len", "2048"])
    subprocess.run([arcpp, "plan", *plan, "--max-model-len", "2048"], cwd=ROOT, check=True)
    command = [arcpp, "gateway", MODEL, *DEVICES, "--name", "kjv", "--port", str(port)]
    _show(console, command)
    server = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        with console.status("starting"):
            _wait(server, port)
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
        asked = {"model": "kjv", "prompt": PROMPT, "max_tokens": 48, "temperature": 0}
        console.print(f"[bold]{PROMPT}[/bold]", end="")
        for chunk in client.completions.create(**asked, stream=True):
            console.print(chunk.choices[0].text, end="", markup=False, highlight=False)
        console.print()
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
        console.print(f"stopped with exit code {code}")
        return code
    finally:
        server.kill()
        server.wait()


def _show(console: Console, command: list[str]) -> None:
    shown = shlex.join(["arcpp", *command[1:]])
    console.print(f"[bold]$[/bold] {shown}", highlight=False, soft_wrap=True)


def _wait(server: subprocess.Popen[str], port: int) -> None:
    """Until it answers. Raises RuntimeError with what it said where it does not."""
    for _ in range(600):
        if server.poll() is not None:
            assert server.stdout is not None
            raise RuntimeError(server.stdout.read())
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise TimeoutError("not ready after two minutes")


if __name__ == "__main__":
    sys.exit(main())
