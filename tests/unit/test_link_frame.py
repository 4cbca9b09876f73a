"""The header of a hop: what is written is read back, and nothing else is believed."""

from __future__ import annotations

import math
import tracemalloc
import zlib
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arcpp.errors import LinkCorrupt
from arcpp.link import (
    FRAME_HEADER_BYTES,
    BoundarySpec,
    Frame,
    TensorSpec,
    decode_frame,
    encode_frame,
)
from arcpp.link.frame import DTYPE_BYTES

LINK = "stage0->stage1"
BIGGEST_STEP = 2**64 - 1
FIXED = 44  # bytes before the descriptions


def described_bytes(frame: Frame) -> int:
    return FIXED + sum(3 + len(t.name.encode()) + 8 * len(t.shape) for t in frame.tensors)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=64).filter(
    lambda name: len(name.encode()) <= 64
)
shapes = st.lists(st.integers(0, 64), max_size=8).map(tuple)
tensors = st.builds(TensorSpec, names, st.sampled_from(sorted(DTYPE_BYTES)), shapes)
frames = st.builds(
    Frame,
    st.integers(0, BIGGEST_STEP),
    st.lists(tensors, max_size=20, unique_by=lambda tensor: tensor.name).map(tuple),
).filter(lambda frame: described_bytes(frame) <= FRAME_HEADER_BYTES and frame.nbytes < 2**64)


def one(
    name: str = "hidden_states", dtype: str = "bfloat16", shape: tuple[int, ...] = (3, 5)
) -> Frame:
    return Frame(0, (TensorSpec(name, dtype, shape),))


@given(frames)
@example(Frame(0, ()))
@example(Frame(BIGGEST_STEP, (TensorSpec("\N{SNOWMAN}" * 21, "float8_e5m2", ()),)))
@example(Frame(7, (TensorSpec("empty", "int64", (0, 64)), TensorSpec("\0\n", "bool", (1,) * 8))))
def test_round_trip(frame: Frame) -> None:
    header = encode_frame(frame)
    assert len(header) == FRAME_HEADER_BYTES
    for form in (header, bytearray(header), memoryview(header)):
        assert decode_frame(form, link=LINK, step=frame.step) == frame


def test_dtype_codes_never_change() -> None:
    """Both ends may be different builds: the code of a dtype is a promise."""
    codes = {}
    for dtype in DTYPE_BYTES:
        codes[dtype] = encode_frame(one("x", dtype, ()))[FIXED + 1]
    assert codes == {
        "bfloat16": 0,
        "float16": 1,
        "float32": 2,
        "float64": 3,
        "int8": 4,
        "int16": 5,
        "int32": 6,
        "int64": 7,
        "uint8": 8,
        "bool": 9,
        "float8_e4m3fn": 10,
        "float8_e5m2": 11,
    }


def test_sizes_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for dtype, size in DTYPE_BYTES.items():
        assert getattr(torch, dtype).itemsize == size, dtype


@given(st.lists(tensors, max_size=6).map(tuple))
def test_payload_is_the_sum_of_the_tensors(specs: tuple[TensorSpec, ...]) -> None:
    total = sum(math.prod(spec.shape) * DTYPE_BYTES[spec.dtype] for spec in specs)
    assert BoundarySpec(specs).nbytes == Frame(0, specs).nbytes == total


@settings(max_examples=400)
@given(st.binary(max_size=FRAME_HEADER_BYTES + 8), st.booleans())
def test_random_bytes_are_corrupt(header: bytes, padded: bool) -> None:
    if padded:
        header = header.ljust(FRAME_HEADER_BYTES, b"\0")
    with pytest.raises(LinkCorrupt) as caught:
        decode_frame(header, link=LINK, step=0)
    assert (caught.value.link, caught.value.step) == (LINK, 0)
    assert len(str(caught.value).splitlines()) == 1


def signed(header: bytearray) -> bytearray:
    """``header`` with a checksum that matches: as a sender would write it that means it."""
    size = int.from_bytes(header[10:12], "little")
    header[4:8] = zlib.crc32(header[8 : FIXED + size]).to_bytes(4, "little")
    return header


@settings(max_examples=400)
@given(st.binary(max_size=400), st.integers(0, 64))
def test_random_descriptions_behind_a_good_start_are_bounded(body: bytes, count: int) -> None:
    """Whatever a description says, reading it allocates nothing of that size."""
    header = bytearray(encode_frame(Frame(0, ())))
    header[9] = count
    header[10:12] = len(body).to_bytes(2, "little")
    header[FIXED : FIXED + len(body)] = body
    tracemalloc.start()
    try:
        frame = decode_frame(signed(header), link=LINK, step=0)
    except LinkCorrupt:
        frame = None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1 << 20
    assert frame is None or frame.nbytes == 0  # nothing but empty tensors matches its 0 bytes


@given(frames, st.data(), st.integers(1, 255))
def test_one_flipped_byte_is_noticed(frame: Frame, data: st.DataObject, flip: int) -> None:
    header = bytearray(encode_frame(frame))
    at = data.draw(st.integers(0, FIXED + int.from_bytes(header[10:12], "little") - 1))
    header[at] ^= flip
    with pytest.raises(LinkCorrupt):
        decode_frame(header, link=LINK, step=frame.step)


@given(frames, st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_piece_of_a_hop_is_read_back(frame: Frame, gaps: int, start: int, length: int) -> None:
    payload = frame.nbytes + gaps
    start %= payload + 1
    length %= payload - start + 1
    piece = replace(frame, payload=payload, start=start, length=length)
    try:
        header = encode_frame(piece)
    except ValueError:
        assert payload >= 2**64
        return
    read = decode_frame(header, link=LINK, step=frame.step)
    assert (read.tensors, read.start) == (frame.tensors, start)
    assert (read.payload or read.nbytes) == payload
    assert (payload - start if read.length is None else read.length) == length


@given(frames, st.integers(0, BIGGEST_STEP))
def test_another_step_is_corrupt(frame: Frame, due: int) -> None:
    if due == frame.step:
        due ^= 1
    with pytest.raises(LinkCorrupt, match=f"hop {frame.step} arrived where hop {due} was due"):
        decode_frame(encode_frame(frame), link=LINK, step=due)


@pytest.mark.parametrize(
    ("payload", "start", "length"),
    [(0, 0, 0), (29, 0, 29), (30, 0, 31), (30, 31, 0), (30, 2**64 - 1, 1), (64, 0, 65)],
)
def test_sizes_that_contradict_each_other_are_corrupt(
    payload: int, start: int, length: int
) -> None:
    header = bytearray(encode_frame(one()))
    for at, size in zip((20, 28, 36), (payload, start, length), strict=True):
        header[at : at + 8] = size.to_bytes(8, "little")
    with pytest.raises(LinkCorrupt, match=f"{length} bytes from {start} of {payload} are announ"):
        decode_frame(signed(header), link=LINK, step=0)


def test_sizes_do_not_wrap_around() -> None:
    """Eight dimensions of 2**40 are not 0 bytes modulo 2**64."""
    header = bytearray(encode_frame(one("x", "int8", (0,) * 8)))
    for dimension in range(8):
        at = FIXED + 3 + 1 + 8 * dimension
        header[at : at + 8] = (2**40).to_bytes(8, "little")
    with pytest.raises(LinkCorrupt, match="of 0 are announced"):
        decode_frame(signed(header), link=LINK, step=0)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, 0),  # magic
        (8, 3),  # version
        (9, 65),  # more tensors than a hop has
        (9, 0),  # descriptions of more tensors than are counted
        (11, 0xFF),  # descriptions longer than the header
        (FIXED, 0),  # no name
        (FIXED, 65),  # too long a name
        (FIXED + 1, 12),  # a dtype nobody knows
        (FIXED + 2, 9),  # too many dimensions
        (FIXED + 3, 0xFF),  # not UTF-8
    ],
)
def test_each_field_out_of_range_is_corrupt(at: int, value: int) -> None:
    header = bytearray(encode_frame(one()))
    header[at] = value
    with pytest.raises(LinkCorrupt, match="unreadable frame header"):
        decode_frame(signed(header), link=LINK, step=0)


@pytest.mark.parametrize("length", [0, 4, 43, 44, 46, 47, 52, 67, 72])
def test_a_header_cut_within_its_descriptions_is_corrupt(length: int) -> None:
    with pytest.raises(LinkCorrupt, match="unreadable frame header"):
        decode_frame(encode_frame(one())[:length], link=LINK, step=0)


@pytest.mark.parametrize(
    "frame",
    [
        one(name=""),
        one(name="x" * 65),
        one(name="\N{SNOWMAN}" * 22),
        one(name="\ud800"),
        one(shape=(1,) * 9),
        Frame(0, tuple(TensorSpec(f"t{i}", "bool", ()) for i in range(65))),
        Frame(0, tuple(TensorSpec(f"{i:064}", "bool", (1,) * 8) for i in range(32))),
    ],
    ids=["no name", "name", "utf-8 name", "surrogate", "dimensions", "tensors", "header"],
)
def test_what_the_format_cannot_say_is_a_value_error(frame: Frame) -> None:
    with pytest.raises(ValueError, match=r"."):
        encode_frame(frame)


def test_the_largest_of_everything_still_fits() -> None:
    frame = Frame(0, tuple(TensorSpec(f"{i:02}", "bool", ()) for i in range(64)))
    assert decode_frame(encode_frame(frame), link=LINK, step=0) == frame
    wide = one(name="x" * 64, shape=(1,) * 8)
    assert decode_frame(encode_frame(wide), link=LINK, step=0) == wide


@pytest.mark.parametrize(
    "frame",
    [
        one(dtype="complex64"),
        one(shape=(-1,)),
        one(shape=(2**63,)),
        one(shape=(0, 2**64)),
        Frame(-1, ()),
        Frame(2**64, ()),
    ],
    ids=["dtype", "negative", "payload", "dimension", "negative step", "step"],
)
def test_numbers_and_dtypes_out_of_range_are_a_value_error_too(frame: Frame) -> None:
    with pytest.raises(ValueError, match=r"."):
        encode_frame(frame)


def test_two_tensors_of_one_name_are_refused() -> None:
    twice = Frame(0, one().tensors * 2)
    with pytest.raises(ValueError, match="hidden_states"):
        encode_frame(twice)


def test_a_header_of_another_length_is_corrupt() -> None:
    with pytest.raises(LinkCorrupt):
        decode_frame(encode_frame(one())[:-1], link=LINK, step=0)
