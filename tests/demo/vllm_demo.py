"""``make demo``: the bundled hybrid model through real vLLM on two CPU stages.

Starts ``vllm serve`` with ``--distributed-executor-backend arcpp``, sends one chat and one
streamed completion with the official client, prints the text, the plan and what each stage
holds, and stops the server. Exit code 0 only if all of that worked and nothing was left behind.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import openai
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from tests.support.vllm_server import HYBRID_MODEL, ROOT, ServerDied, VllmServer

ARGUMENTS = (
    "--distributed-executor-backend", "arcpp", "--pipeline-parallel-size", "2",
    "--max-model-len", "2048", "--max-num-seqs", "8", "--enforce-eager",
    "--dtype", "bfloat16", "--gpu-memory-utilization", "0.3",
)  # fmt: skip
PROMPT = "In the beginning God"
_LOG_PREFIX = re.compile(r"^(\(.*?\) )?[A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]+\] ?")


def main() -> int:
    """The bundled model; exit code."""
    return run(HYBRID_MODEL, ARGUMENTS, _ask)


def run(model: Path, arguments: Sequence[str], ask: Callable[[Console, VllmServer], None]) -> int:
    """Serve ``model``, let ``ask`` talk to it, show plan and stages, stop; exit code."""
    console = Console()
    with console.status("starting vLLM") as status:
        server = VllmServer(model, *arguments, on_wait=lambda text: status.update(_progress(text)))
        shown = shlex.join(["vllm", *server.command[1:]]).replace(f"{ROOT}/", "")
        console.print(f"[bold]$[/bold] {shown}", highlight=False, soft_wrap=True)
        try:
            server.wait_ready()
        except (ServerDied, TimeoutError, KeyboardInterrupt) as error:
            server.kill()
            console.print(f"the server did not start: {error}", markup=False)
            return 1
    try:
        ask(console, server)
        _show_plan(console, server.text())
    finally:
        with console.status("stopping"):
            code = server.stop()
    if code or server.left:
        console.print(f"the server did not stop cleanly: exit code {code}, left {server.left}")
        return 1
    server.clean_up()
    console.print("stopped; no process, shared memory or socket left")
    return 0


def _ask(console: Console, server: VllmServer) -> None:
    client = openai.OpenAI(base_url=server.url, api_key="none")
    chat = client.chat.completions.create(
        model="model", messages=[{"role": "user", "content": PROMPT}], max_tokens=48, temperature=0
    )
    answer = chat.choices[0].message.content or ""
    console.print(Panel(Text.assemble((PROMPT, "bold"), answer), title="chat completion"))
    stream = client.completions.create(
        model="model", prompt=PROMPT, max_tokens=48, temperature=0, stream=True
    )
    console.print("streamed completion: ", end="")
    for chunk in stream:
        console.print(chunk.choices[0].text, end="", markup=False, highlight=False)
    console.print("\n")


def _show_plan(console: Console, log: str) -> None:
    """The plan table and the stages' own report, as the workers logged them."""
    lines = log.splitlines()
    at = next(number for number, line in enumerate(lines) if "arcpp: the plan for" in line)
    owner = lines[at].split(")")[0]
    for line in lines[at + 1 :]:
        if not line.startswith(owner) or "stage_plan.py" not in line:
            break
        console.print(_LOG_PREFIX.sub("", line), markup=False, highlight=False)
    for line in lines:
        if "arcpp: stage" in line and "holds layers" in line:
            console.print(_LOG_PREFIX.sub("", line), markup=False, highlight=False)


def _progress(log: str) -> str:
    lines = [line for line in log.splitlines() if _LOG_PREFIX.match(line)]
    last = _LOG_PREFIX.sub("", lines[-1])[:90] if lines else "importing"
    return f"starting vLLM: {last}".replace("[", "\\[")


if __name__ == "__main__":
    sys.exit(main())
