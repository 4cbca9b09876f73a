"""What becomes of real messages, exceptions, exit codes and what only looks like a fault."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcpp.errors import DeadlineExceeded, LinkCorrupt, NonFinite, PeerLost, StateCorrupt
from arcpp.supervise import FaultKind, classify
from arcpp.supervise.patterns import PATTERNS

TABLE = json.loads((Path(__file__).parent / "data" / "fault_messages.json").read_text("utf-8"))


@pytest.mark.parametrize("row", TABLE["faults"], ids=lambda row: row["message"][:60])
def test_real_messages(row: dict[str, str]) -> None:
    """As text of a process, as an exception, and among other lines of a log."""
    noise = 'INFO 01-01 00:00:00 [core.py:1] Starting\n  File "x.py", line 3, in f\n'
    for fault in (
        classify(text=row["message"]),
        classify(text=noise + row["message"] + "\n" + noise),
        classify(RuntimeError(row["message"])),
        classify(text=row["message"], exit_code=1),
        classify(text=row["message"], exit_code=-6),
    ):
        if fault.kind is FaultKind.STAGE_DIED:  # the exit code says more than a host's lament
            assert row["kind"] in ("StageDied", "PeerLost", "StageStalled")
            continue
        assert fault.kind == row["kind"], fault
        assert fault.advice
        assert len(str(fault).splitlines()) == 1


def test_the_table_is_of_real_messages() -> None:
    assert len(TABLE["faults"]) >= 40
    assert all(row["source"] for row in TABLE["faults"] + TABLE["not_a_lost_device"])
    assert {row["kind"] for row in TABLE["faults"]} | {"StageFailed"} == set(FaultKind)


@pytest.mark.parametrize("row", TABLE["not_a_lost_device"], ids=lambda row: row["message"][:60])
def test_ordinary_messages_are_no_lost_device(row: dict[str, str]) -> None:
    for fault in (classify(text=row["message"]), classify(RuntimeError(row["message"]))):
        assert fault.kind is not FaultKind.DEVICE_LOST, fault


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PeerLost("gone", link="a"), FaultKind.PEER_LOST),
        (DeadlineExceeded("slow", link="a"), FaultKind.STAGE_STALLED),
        (LinkCorrupt("wrong", link="a"), FaultKind.LINK_CORRUPT),
        (NonFinite("logits", stage=1, step=4), FaultKind.NON_FINITE),
        (StateCorrupt(("block 3 is written past",)), FaultKind.STATE_CORRUPT),
        (MemoryError(), FaultKind.OUT_OF_DEVICE_MEMORY),
        (TimeoutError(), FaultKind.STAGE_STALLED),
        (ConnectionResetError(104, "Connection reset by peer"), FaultKind.PEER_LOST),
        (BrokenPipeError(), FaultKind.PEER_LOST),
        (EOFError(), FaultKind.PEER_LOST),
        (KeyError("layer"), FaultKind.STAGE_FAILED),
        (SystemExit(3), FaultKind.STAGE_DIED),
        (OSError(12, "Cannot allocate memory"), FaultKind.OUT_OF_DEVICE_MEMORY),
        (ExceptionGroup("two", [KeyError(1), NonFinite("logits")]), FaultKind.NON_FINITE),
    ],
)
def test_types_of_exceptions(error: BaseException, kind: FaultKind) -> None:
    assert classify(error).kind is kind


def test_a_type_known_by_name_only() -> None:
    class OutOfMemoryError(RuntimeError):
        """Stands for torch.OutOfMemoryError, which cannot be imported here."""

    assert classify(OutOfMemoryError("no room")).kind is FaultKind.OUT_OF_DEVICE_MEMORY


def test_the_cause_counts_more_than_what_wraps_it() -> None:
    def fail() -> None:
        try:
            raise RuntimeError("Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)")
        except RuntimeError as error:
            raise ConnectionResetError("Connection reset by peer") from error

    with pytest.raises(ConnectionResetError) as caught:
        fail()
    fault = classify(caught.value, device="xpu:1", stage=1, rank=1, step=7)
    assert fault.kind is FaultKind.DEVICE_LOST
    assert "UR_RESULT_ERROR_DEVICE_LOST" in fault.cause
    assert str(fault).startswith("DeviceLost on xpu:1 (stage 1, step 7): ")


def test_what_an_exception_happened_in_counts_unless_it_was_hidden() -> None:
    def fail(hidden: bool) -> None:
        try:
            raise RuntimeError("UR_RESULT_ERROR_DEVICE_LOST")
        except RuntimeError:
            if hidden:
                raise KeyError("x") from None
            raise KeyError("x")  # noqa: B904 (the context is what is tested)

    for hidden, kind in ((False, FaultKind.DEVICE_LOST), (True, FaultKind.STAGE_FAILED)):
        with pytest.raises(KeyError) as caught:
            fail(hidden)
        assert classify(caught.value).kind is kind


def test_notes_are_read() -> None:
    error = ValueError("step failed")
    error.add_note("the device said CL_DEVICE_NOT_AVAILABLE")
    assert classify(error).kind is FaultKind.DEVICE_LOST


def test_chains_that_bite_their_tail_end() -> None:
    error = ValueError("a")
    error.__cause__ = KeyError("b")
    error.__cause__.__cause__ = error
    assert classify(error).kind is FaultKind.STAGE_FAILED


def test_an_exception_that_cannot_be_shown() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    assert classify(Mute()).cause == "Mute"


def test_where_it_happened_is_kept() -> None:
    fault = classify(NonFinite("boundary stage0->stage1", stage=1, step=9), device="cpu")
    assert (fault.stage, fault.step, fault.device, fault.rank) == (1, 9, "cpu", None)
    assert classify(NonFinite("logits", stage=1), stage=0).stage == 0, "who asks knows better"


@pytest.mark.parametrize(
    ("code", "words", "consequence"),
    [
        (-9, "SIGKILL", False),
        (137, "SIGKILL", False),
        (-11, "SIGSEGV", False),
        (139, "SIGSEGV", False),
        (-6, "SIGABRT", False),
        (-7, "SIGBUS", False),
        (-15, "SIGTERM", True),
        (-2, "SIGINT", True),
        (0, "without an error", True),
        (1, "exit code 1", True),
        (255, "exit code 255", True),
        (-1000, "exit code -1000", True),
    ],
)
def test_exit_codes(code: int, words: str, consequence: bool) -> None:
    fault = classify(exit_code=code)
    assert fault.kind is FaultKind.STAGE_DIED
    assert words in fault.cause
    assert fault.consequence is consequence


def test_a_killed_process_may_have_been_out_of_memory() -> None:
    assert "memory" in classify(exit_code=-int(signal.SIGKILL)).advice
    text = "Out of memory: Killed process 4242 (python) total-vm:104857600kB"
    assert classify(exit_code=-9, text=text).kind is FaultKind.OUT_OF_DEVICE_MEMORY


def test_the_last_line_of_a_process_that_ended_is_shown() -> None:
    assert classify(exit_code=1, text="a\nValueError: odd\n\n").cause.endswith(": ValueError: odd")


def test_nothing_known() -> None:
    assert classify().kind is FaultKind.STAGE_FAILED
    assert classify().cause == "no reason was given"


@given(st.text(), st.none() | st.integers(-300, 300))
def test_any_text_gives_one_line(text: str, code: int | None) -> None:
    for fault in (classify(text=text, exit_code=code), classify(ValueError(text))):
        assert len(str(fault).splitlines()) == 1
        assert len(fault.cause) <= 300


@pytest.mark.parametrize("word", ["x: ", "gloo ", "xe ", "Xid: ", "clFoo error", "Xid 1", "ze:"])
def test_a_long_log_is_read_quickly_and_from_its_end(word: str) -> None:
    started = time.monotonic()
    lines = [word * 20_000, *[word * 500] * 20, "UR_RESULT_ERROR_DEVICE_LOST"]
    assert classify(text="\n".join(lines)).kind is FaultKind.DEVICE_LOST
    assert time.monotonic() - started < 5
    assert classify(text=word * 20_000 + " UR_RESULT_ERROR_DEVICE_LOST").kind == "DeviceLost"


def test_every_pattern_is_needed_by_no_empty_text() -> None:
    assert all(pattern.advice and not pattern.looks_like.search("") for pattern in PATTERNS)
