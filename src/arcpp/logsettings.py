"""What a vLLM start-up log says of how the server was started: its version and its options.

vLLM prints what was set in one line of its own: ``non-default args: {'max_model_len': 8192, ...}``.
Values that are no literals (configuration objects, in some versions) are passed over.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

_VERSION = re.compile(
    r"(?:\bserver version|█[^█\n]{0,20} version|LLM engine \(v)(?:\s|\x1b\[\d{1,3}m){0,4}v?"
    r"(\d{1,4}\.\d{1,4}[\w.+]{0,40})"
)
_ARGS = "non-default args: {"
# Strings, brackets, commas, others. A string that never ends takes the rest: matching stays linear.
_PIECE = re.compile(
    r"'(?:[^'\\]|\\.)*+(?:'|\\?\Z)|\"(?:[^\"\\]|\\.)*+(?:\"|\\?\Z)|[\[({\])},]|[^'\"\[({\])},]+",
    re.DOTALL,
)
_ENTRY = re.compile(r"\s*'(\w{1,60})': (.{1,200})", re.DOTALL)


#: Of what ``options_in`` finds, the one that is no option: how many stages the server has.
STAGES = "stages"


def _drafts(value: object) -> object:
    """Draft tokens of a speculative_config, where they are of the kind that is planned for."""
    known = isinstance(value, dict) and "mtp" in str(value.get("method"))
    return value.get("num_speculative_tokens") if known else None  # type: ignore[attr-defined]


def _named(value: object) -> object:
    return None if value == "auto" else value


def _length(value: object) -> object:
    """As written on a command line; the longest that fits is in the log's figures."""
    return None if value in (-1, "auto") else str(value)


def _size(value: object) -> object:
    return str(value)


#: vLLM's name -> our option's, and its value there (None: as if it were not said).
_KNOWN: dict[str, tuple[str, type | tuple[type, ...], Callable[[Any], object]]] = {
    "max_model_len": ("max_model_len", int, _length),
    "max_num_seqs": ("max_num_seqs", int, int),
    "max_num_batched_tokens": ("max_num_batched_tokens", int, int),
    "gpu_memory_utilization": ("gpu_memory_utilization", (int, float), float),
    "kv_cache_memory_bytes": ("kv_memory", int, _size),
    "kv_cache_dtype": ("kv_cache_dtype", str, _named),
    "dtype": ("dtype", str, _named),
    "block_size": ("block_size", int, int),
    "enable_prefix_caching": ("prefix_caching", bool, bool),
    "mamba_cache_mode": ("mamba_cache_mode", str, str),
    "mamba_ssm_cache_dtype": ("ssm_dtype", str, _named),
    "pipeline_parallel_size": (STAGES, int, int),
    "speculative_config": ("spec_tokens", dict, _drafts),
}


def version_in(line: str) -> str | None:
    """The version of vLLM that ``line`` states, or None."""
    if " version" not in line and "(v" not in line:
        return None
    match = _VERSION.search(line)
    return None if match is None else match[1]


def options_in(line: str) -> dict[str, object] | None:
    """Values by the name of ``arcpp plan``'s option, from a line of arguments; None for others."""
    begin, end = line.find(_ARGS), line.rfind("}")  # a pattern would try every beginning
    if not 0 <= begin < end:
        return None
    found: dict[str, object] = {}
    for entry in _entries(line[begin + len(_ARGS) : end]):
        parts = _ENTRY.fullmatch(entry)
        if parts is None or parts[1] not in _KNOWN:
            continue
        option, kind, taken = _KNOWN[parts[1]]
        value = _literal(parts[2])
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            meant = taken(value)
            found.update({} if meant is None else {option: meant})
    return found


def option_text(name: str, value: object) -> str:
    """An option of ``arcpp plan`` and its value as somebody would write them."""
    words = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{words}"
    return f"--{words} {value}"


def _entries(text: str) -> Iterator[str]:
    """What stands between the outermost commas of ``text``; linear."""
    depth = 0
    parts: list[str] = []
    for match in _PIECE.finditer(text):
        piece = match[0]
        depth += (piece in "[({") - (piece in "])}")
        if piece == "," and depth == 0:
            yield "".join(parts)
            parts = []
        else:
            parts.append(piece)
    yield "".join(parts)


def _literal(text: str) -> object:
    try:
        with warnings.catch_warnings():  # Python's own about what somebody else wrote
            warnings.simplefilter("ignore")
            return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # of deep nesting: the last two
        return None
