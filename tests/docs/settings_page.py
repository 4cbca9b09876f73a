"""Writes the table of docs/settings.md: ``python -m tests.docs.settings_page``."""

from __future__ import annotations

import re
from pathlib import Path

from arcpp.settings import settings_table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
_TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of table -->)", re.DOTALL)


def renewed(text: str) -> str:
    """``text`` of the page with the table as it should be."""
    return _TABLE.sub(lambda _match: settings_table(), text)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
