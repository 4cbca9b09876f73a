"""``make demo-instruct``: a real instruct model on two CPU stages answers a question.

Exit code 0 only if the answer has the right city in it.
"""

from __future__ import annotations

import sys

import openai
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from tests.support import smollm2
from tests.support.vllm_server import VllmServer

from .vllm_demo import run

ARGUMENTS = (
    "--distributed-executor-backend", "arcpp", "--pipeline-parallel-size", "2",
    "--max-model-len", "1024", "--max-num-seqs", "4", "--enforce-eager",
    "--gpu-memory-utilization", "0.4",
)  # fmt: skip
QUESTION = "What is the capital of France?"
ANSWER = "Paris"


def main() -> int:
    """Run the demonstration; exit code."""
    console = Console()
    with console.status("fetching and converting SmolLM2-135M-Instruct (about 100 MB)"):
        model = smollm2.folder()
    answers: list[str] = []

    def ask(console: Console, server: VllmServer) -> None:
        client = openai.OpenAI(base_url=server.url, api_key="none")
        chat = client.chat.completions.create(
            model="model",
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=32,
            temperature=0,
        )
        answers.append(chat.choices[0].message.content or "")
        shown = Text.assemble((f"{QUESTION}\n", "bold"), answers[0])
        console.print(Panel(shown, title="SmolLM2-135M-Instruct"))

    code = run(model, ARGUMENTS, ask)
    if code == 0 and ANSWER not in answers[0]:
        console.print(f"that is not {ANSWER}")
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
