"""Put figures from cards into docs/benchmarks.md: ``python -m tests.bench.hop_cards NAME FILE``.

FILE is what ``arcpp bench hop --json`` printed on the machine that has them. NAME becomes the
section's: "one-card", "two-cards".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from arcpp.bench.hops import Figure
from arcpp.bench.report import hop_rows

from .__main__ import PAGE, replaced
from .hop_speed import HEADING

_KEYS = {
    "to_raw": "times_raw_copies",
    "of_raw_rate": "share_of_raw_rate",
    "to_gloo": "times_sooner_than_gloo",
    "of_gloo_rate": "times_rate_of_gloo",
}


def lines(measured: dict[str, Any]) -> list[str]:
    """A section's lines, without its heading."""
    first, second = measured["devices"]
    pages = ", ".join(f"{way}: {link['pinning']}" for way, link in measured["links"].items())
    versions = measured["versions"]
    options = [f"--device {device['name']}" for device in (first, second)]
    options += [f"--way {way}" for way in _ways(measured["figures"])]
    return [
        f"One hop between two processes: {first['name']} ({first['card']}) and {second['name']} "
        f"({second['card']}).",
        f"Pages of the ring: {pages}.",
        "",
        *HEADING,
        *(
            f"| {' | '.join(cells)} |"
            for cells in hop_rows([_figure(f) for f in measured["figures"]])
        ),
        "",
        f"Measured on {measured['machine']['processor']}, {measured['machine']['cores']} cores; "
        f"Python {versions['python']}, arcpp {measured['arcpp']}, torch {versions['torch']}; "
        f"`arcpp bench hop {' '.join(options)} --rounds {measured['rounds']} --json`.",
    ]


def _figure(figure: dict[str, Any]) -> Figure:
    ratios = {name: figure[key] for name, key in _KEYS.items()}
    if ratios["to_gloo"]:
        ratios["to_gloo"] = 1 / ratios["to_gloo"]
    sizes = figure["size_bytes"], figure["one_way_s"], figure["bytes_per_s"]
    return Figure(figure["way"], *sizes, **ratios)


def _ways(figures: list[dict[str, Any]]) -> list[str]:
    words = {"raw copies": "raw", "ring, verified": "verified"}
    return list(dict.fromkeys(words.get(figure["way"], figure["way"]) for figure in figures))


def main(arguments: list[str]) -> int:
    """Write one section."""
    name, file = arguments
    measured = json.loads(Path(file).read_text(encoding="utf-8"))
    text = "\n".join([f"## hop, {name.replace('-', ' ')}", "", *lines(measured), ""])
    page = replaced(PAGE.read_text(encoding="utf-8"), f"hop-{name}", text)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
