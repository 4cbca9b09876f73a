"""The exception tree is the one that is drawn, and every message is one line with its fields."""

from __future__ import annotations

import inspect
import re

import pytest

from arcpp import errors
from arcpp.errors import (
    ArcppError,
    BadInput,
    BadModel,
    BadSize,
    DeadlineExceeded,
    DoesNotFit,
    HostMismatch,
    LinkCorrupt,
    LinkError,
    PeerLost,
    UnknownModel,
)

_DRAWN = re.compile(r"^ {4}(?P<branch>[ │├└─]*)(?P<name>[A-Z]\w+)(?P<says> .*)?$")


def _drawn() -> dict[str, str]:
    """Class name -> name of its base, from the picture in the module's docstring."""
    path: list[str] = []
    tree = {}
    for line in (errors.__doc__ or "").splitlines():
        match = _DRAWN.match(line)
        if match is None:
            continue
        depth = len(match["branch"]) // 4
        path[depth:] = [match["name"]]
        tree[match["name"]] = path[depth - 1] if depth else "Exception"
    return tree


def _defined() -> dict[str, str]:
    classes = inspect.getmembers(errors, inspect.isclass)
    return {
        name: found.__bases__[0].__name__
        for name, found in classes
        if found.__module__ == errors.__name__ and issubclass(found, Exception)
    }


def test_the_drawn_tree_is_the_real_one() -> None:
    assert _drawn() == _defined()
    assert len(_drawn()) > 8, "the picture was not understood"


def test_every_exception_says_what_it_is_for() -> None:
    for name in _defined():
        assert (getattr(errors, name).__doc__ or "").strip(), name


@pytest.mark.parametrize("kind", [BadInput, BadSize, BadModel, UnknownModel])
def test_bad_input_carries_what_was_written(kind: type[BadInput]) -> None:
    error = kind("--margin", "lots", "is not a size")
    assert (error.what, error.value, error.right) == ("--margin", "lots", "is not a size")
    assert str(error) == "--margin: 'lots' is not a size"


@pytest.mark.parametrize("value", ["two\nlines", "a\r\nb\x85c\u2028d", {"a": "\n"}, b"\n"])
def test_a_value_with_line_breaks_stays_on_one_line(value: object) -> None:
    assert len(str(BadInput("--device", value, "is wrong")).splitlines()) == 1


def test_a_long_value_is_cut_and_kept_whole_in_the_field() -> None:
    error = BadInput("config.json", "x" * 10_000, "is too long")
    assert len(str(error)) < 300
    assert error.value == "x" * 10_000


def test_does_not_fit_carries_the_stage_and_the_way_out() -> None:
    error = DoesNotFit(
        "stage 1 is short", stage=1, device="B580", missing_bytes=7, nearest="--max-model-len 8"
    )
    assert str(error) == "stage 1 is short"
    fields = (error.stage, error.device, error.missing_bytes, error.nearest)
    assert fields == (1, "B580", 7, "--max-model-len 8")


def test_host_mismatch_names_version_what_is_missing_and_the_range() -> None:
    error = HostMismatch("vLLM", "0.99.0", ("Executor.get_class is gone", "x is gone"), ">=1,<2")
    assert (error.host, error.version, error.supported) == ("vLLM", "0.99.0", ">=1,<2")
    assert error.missing == ("Executor.get_class is gone", "x is gone")
    for part in ("0.99.0", "Executor.get_class is gone, x is gone", ">=1,<2"):
        assert part in str(error)
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize("kind", [LinkError, PeerLost, DeadlineExceeded, LinkCorrupt])
def test_link_errors_carry_link_and_step(kind: type[LinkError]) -> None:
    error = kind("gone", link="stage0->stage1", step=4)
    assert (error.link, error.step, str(error)) == ("stage0->stage1", 4, "gone")
    assert kind("gone", link="x").step is None


def test_one_except_clause_catches_them_all() -> None:
    assert all(issubclass(getattr(errors, name), ArcppError) for name in _defined())
