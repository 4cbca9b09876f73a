"""Names of inputs and outputs: those of OpenVINO's paged form, and what crosses cuts."""

from __future__ import annotations

from typing import Any

#: Input of the paged form -> field of StepBatch. Both names of positions may be of one input.
STEP_FIELDS = {
    "input_ids": "token_ids",
    "position_ids": "positions",
    "cache_position": "positions",
    "past_lens": "past_lens",
    "subsequence_begins": "subsequence_begins",
    "block_indices": "block_indices",
    "block_indices_begins": "block_indices_begins",
    "max_context_len": "max_context_len",
    "logits_rows": "logits_rows",
    "la.block_indices": "state_blocks",
    "la.block_indices_begins": "state_blocks_begins",
    "la.past_lens": "state_past_lens",
    "la.cache_interval": "cache_interval",
}
#: Input of the last stage, made by us: which tokens get logits.
ROWS = "logits_rows"
BLOCKS, BLOCK_BEGINS = "block_indices", "block_indices_begins"
POSITIONS = {"position_ids", "cache_position"}
KV_TABLES = ("key_cache.", "value_cache.")
STATE_TABLES = ("conv_state_table.", "gated_delta_state_table.")
TABLES = KV_TABLES + STATE_TABLES
#: What crosses cuts: the hidden state before layer N, and shapes by their operation's number.
HIDDEN, SHAPE = "hidden.", "shape:"
LOGITS = "logits"


def known_name(port: Any) -> str:
    """The name among a port's that means something here; else any of them, "" for none."""
    names = sorted(str(name) for name in port.get_names())
    for name in names:
        if name.startswith((*TABLES, HIDDEN, SHAPE)) or name in STEP_FIELDS or name == LOGITS:
            return name
    return names[0] if names else ""
