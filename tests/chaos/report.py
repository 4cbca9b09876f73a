"""Twelve clients stream greedily through a real server while its stages are lost at random.

Stages on the processor, the bundled model in bfloat16, standby on, the deadline of a step set
to 15 s. A client sees nothing but a pause. Departed: streams that differ from the undisturbed one,
from a token on at which the model's two best logits are closer than bfloat16 tells apart (0.1);
worst token: how far any token of any stream lies below the best, when the stream is computed anew
in one piece. Detection is from the fault to the engine's decision, recovery from there until
stages run; then the requests' tokens so far are computed anew, which takes the last column; all as
median (highest).
"""

from __future__ import annotations

import statistics
from typing import Any

from .faults import allowed
from .streams import ROUNDING

_GROWTH = 64 << 20  # bytes the staying processes may grow in a run, whatever the faults
_SEGMENTS = 2  # once: what the engine makes when it starts stages for the first time itself
_DESCRIPTORS = 40  # once, whatever the faults: connections of clients, the fork server's
_WORST = 2 * ROUNDING  # a token may be rounded in the stream and in the check


def _span(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} ({max(seconds):.1f})" if seconds else ""


def good(result: dict[str, Any]) -> bool:
    """Whether nothing failed, nothing was wrong, nothing was late, nothing is left."""
    return not complaints(result) and not late(result)


def late(result: dict[str, Any]) -> list[str]:
    """Faults noticed later than they should be. A busy machine makes some: nothing in CI asks."""
    return [
        f"{fault['kind']} noticed after {fault['detect_s']:.2f} s"
        for fault in result["faults"]
        if fault["detect_s"] > allowed(fault["kind"])
    ]


def complaints(result: dict[str, Any]) -> list[str]:
    """What is not as it must be, whatever the machine."""
    streams, (before, first, last) = result["streams"], result["held"]
    found = [*streams["errors"], *streams["wrong"]]
    if streams["stuck"]:
        found.append(f"{streams['stuck']} clients stuck")
    if streams["worst"] > _WORST:
        found.append(f"a token {streams['worst']:.3f} below the best")
    if last["rss"] - first["rss"] > _GROWTH:
        found.append(f"grew by {(last['rss'] - first['rss']) >> 20} MiB")
    if last["segments"] > before["segments"] + _SEGMENTS:
        found.append(f"{last['segments'] - before['segments']} segments more")
    if last["descriptors"] > before["descriptors"] + _DESCRIPTORS:
        found.append(f"{last['descriptors'] - before['descriptors']} descriptors more")
    left = result["left"]
    if left.get("processes") or left.get("shared_memory"):
        found.append(f"left behind: {left['processes']} {left['shared_memory']}")
    return found


def table(results: list[dict[str, Any]]) -> list[str]:
    """Markdown: a row per kind of fault, then what clients saw."""
    faults = [fault for result in results for fault in result["faults"]]
    lines = [
        "| fault | count | detection, ms | recovery, s | recomputed, s |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for kind in dict.fromkeys(sorted(fault["kind"] for fault in faults)):
        of_kind = [fault for fault in faults if fault["kind"] == kind]
        detect = [1000 * fault["detect_s"] for fault in of_kind]
        recover = [fault["recover_s"] for fault in of_kind]
        again = [fault["prefill_s"] for fault in of_kind if fault["prefill_s"] is not None]
        lines.append(
            f"| {kind} | {len(of_kind)} | {statistics.median(detect):.0f} ({max(detect):.0f}) "
            f"| {statistics.median(recover):.1f} ({max(recover):.1f}) | {_span(again)} |"
        )
    streams = [result["streams"] for result in results]
    complained = [text for one in results for text in (*complaints(one), *late(one))]
    lines += [
        "",
        f"{len(faults)} faults in {len(results)} runs (seeds "
        f"{', '.join(str(result['seed']) for result in results)}), "
        f"{sum(one['count'] for one in streams)} streams: "
        f"{sum(len(one['errors']) for one in streams)} failed, "
        f"{sum(len(one['wrong']) for one in streams)} wrong, "
        f"{sum(one['departed'] for one in streams)} departed by rounding; "
        f"worst token {max(one['worst'] for one in streams):.3f} logits below the best.",
    ]
    if complained:
        lines += ["", "Not as it must be: " + "; ".join(complained)]
    return lines
