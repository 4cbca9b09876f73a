"""Checked access to ``config.json``: a missing or absurd field is one line naming it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arcpp.errors import BadModel

_MISSING = object()
_LARGEST = 2**40


class Fields:
    """A JSON object read field by field. Every getter raises BadModel naming the field."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values, self.where = values, where

    def has(self, name: str) -> bool:
        """Whether ``name`` is there and not null."""
        return self._values.get(name) is not None

    def names(self) -> tuple[str, ...]:
        """Names of all fields."""
        return tuple(self._values)

    def raw(self, name: str) -> Any:
        """The value as parsed, or None."""
        return self._values.get(name)

    def count(self, *names: str, default: object = _MISSING, least: int = 1) -> int:
        """The first of ``names`` that is there, an integer of at least ``least``."""
        for name in names:
            value = self._values.get(name)
            if value is None:
                continue
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int):
                raise BadModel(f"{self.where}: {name}", value, "is not an integer")
            if not least <= value <= _LARGEST:
                raise BadModel(f"{self.where}: {name}", value, f"is not between {least} and 2**40")
            return value
        if isinstance(default, int):
            return default
        raise BadModel(self.where, " or ".join(names), "is missing")

    def number(self, name: str, default: float, *, most: float) -> float:
        """A number above 0 and at most ``most``."""
        value = self._values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
            right = f"is not a number above 0 and at most {most:g}"
            raise BadModel(f"{self.where}: {name}", value, right)
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A JSON boolean."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BadModel(f"{self.where}: {name}", value, "is not true or false")
        return value

    def text(self, name: str) -> str | None:
        """A string, or None when absent."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise BadModel(f"{self.where}: {name}", value, "is not a string")
        return value

    def inner(self, name: str) -> Fields | None:
        """A nested object, or None when absent."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise BadModel(f"{self.where}: {name}", value, "is not a JSON object")
        return Fields(value, f"{self.where}: {name}")

    def texts(self, name: str, length: int) -> list[str] | None:
        """A list of ``length`` strings, or None when absent."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise BadModel(f"{self.where}: {name}", value, "is not a list of strings")
        if len(value) != length:
            raise BadModel(
                f"{self.where}: {name}", len(value), f"entries contradict {length} hidden layers"
            )
        return list(value)
