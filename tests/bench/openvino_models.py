"""Models for ``make bench SECTIONS=openvino``, which are too large for the repository.

    python -m tests.bench.openvino_models FOLDER [SMOLLM2]

Needs what arcpp's own set-up does not install (an environment of its own, because the exporter
wants other versions than vLLM): optimum-intel 2.2.0, transformers 5.2.0, nncf, openvino and
openvino-tokenizers 2026.4.1. SMOLLM2: the folder that ``make demo-instruct`` made,
``.venv/arcpp-models/smollm2-135m-instruct``. Writes to FOLDER:

- ``dense-0.8gb``: a dense Qwen3 of random weights, 24 layers of 1024, float16: 0.8 GB.
- ``smollm2``: SmolLM2-135M-Instruct, float16.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

TOKENIZER = Path(__file__).resolve().parents[1] / "models" / "kjv-hybrid-8l" / "hf"
_DENSE = {
    "vocab_size": 4096, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64,
    "max_position_embeddings": 8192, "tie_word_embeddings": False, "eos_token_id": 0,
}  # fmt: skip


def write_dense(folder: Path) -> None:
    """A model as large as a small real one; its tokens are random, its time is not."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as there:
        Qwen3ForCausalLM(Qwen3Config(**_DENSE)).save_pretrained(there)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(TOKENIZER / name, there)
        export(Path(there), folder)


def export(source: Path, folder: Path) -> None:
    """The checkpoint in ``source`` as a float16 IR with its tokenizer."""
    import openvino as ov
    from openvino_tokenizers import convert_tokenizer
    from optimum.intel import OVModelForCausalLM
    from transformers import AutoTokenizer

    model = OVModelForCausalLM.from_pretrained(
        source, export=True, compile=False, load_in_8bit=False
    )
    model.half()
    model.save_pretrained(folder)
    for path in source.iterdir():
        if path.suffix in {".json", ".jinja"}:
            shutil.copy(path, folder)
    pair = convert_tokenizer(
        AutoTokenizer.from_pretrained(source), with_detokenizer=True, skip_special_tokens=True
    )
    for one, name in zip(pair, ("tokenizer", "detokenizer"), strict=True):
        ov.save_model(one, str(folder / f"openvino_{name}.xml"))


def main(arguments: list[str]) -> int:
    """Write what is not there yet."""
    if len(arguments) not in {1, 2}:
        print("usage: python -m tests.bench.openvino_models FOLDER [SMOLLM2]", file=sys.stderr)
        return 1
    home, writers = Path(arguments[0]), {"dense-0.8gb": write_dense}
    if len(arguments) > 1:
        writers["smollm2"] = partial(export, Path(arguments[1]))
    for name, write in writers.items():
        if not (home / name / "openvino_detokenizer.xml").exists():
            write(home / name)
        sizes = {path.name: path.stat().st_size for path in (home / name).iterdir()}
        print(json.dumps({name: sizes.get("openvino_model.bin", 0)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
