"""Where a model's config and weight headers lie on this machine, before vLLM loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arcpp.errors import BadModel


def local_folder(worker: Any) -> Path:
    """Folder with config.json and safetensors files of the model this worker will load.

    A hub name is brought here by vLLM's own loader (several workers may ask at once; it locks)
    and found in the hub's cache. Raises BadModel when there is no such folder.
    """
    model = worker.model_config.model
    folder = Path(model)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from vllm.model_executor.model_loader import get_model_loader

    try:
        get_model_loader(worker.load_config).download_model(worker.model_config)
        return Path(
            snapshot_download(
                model,
                revision=worker.model_config.revision,
                cache_dir=worker.load_config.download_dir,
                local_files_only=True,
            )
        )
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadModel("model", model, f"cannot be had: {reason}") from error
