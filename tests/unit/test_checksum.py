"""The checksum that is taken on both devices: what it catches, and what it does not depend on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
checksums = pytest.importorskip("arcpp.backends.torch_checksum")

LENGTHS = range(5001)
#: Bytes that are summed as a table, and not of whole rows, words or bytes.
LARGE = 8 * (checksums._SMALL_WORDS + 3 * 512 + 17) + 5


def taken(raw: bytes | bytearray) -> int:
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else empty()
    return int(checksums.checksum(flat))


def empty() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8)


def noise(size: int, seed: int) -> bytearray:
    generator = torch.Generator().manual_seed(seed)
    made = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    return bytearray(made.numpy().tobytes())


def reference(raw: bytes) -> int:
    """The definition, for what is summed word by word."""
    words = [
        int.from_bytes(raw[at : at + 8], "little") for at in range(0, len(raw) - len(raw) % 8, 8)
    ]
    weights = checksums._weights(len(words), 1, torch.device("cpu")).tolist()
    total = len(raw) + sum(word * weight for word, weight in zip(words, weights, strict=True))
    tail = checksums._weights(8, 5, torch.device("cpu")).tolist()
    total += sum(byte * weight for byte, weight in zip(raw[len(words) * 8 :], tail, strict=False))
    total %= 2**64
    return total - 2**64 if total >= 2**63 else total


@pytest.mark.parametrize("first", range(0, 5001, 500))
def test_every_length_is_summed_as_defined(first: int) -> None:
    raw = noise(5001, first)
    for size in LENGTHS[first : first + 500 : 7]:
        assert taken(raw[:size]) == reference(raw[:size]), size


def test_every_length_has_another_sum_even_of_zeros() -> None:
    assert len({taken(bytes(size)) for size in LENGTHS}) == len(LENGTHS)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_one_changed_byte_is_caught(data: st.DataObject) -> None:
    raw = noise(data.draw(st.sampled_from(LENGTHS[1:])), data.draw(st.integers(0, 99)))
    at = data.draw(st.integers(0, len(raw) - 1))
    before = taken(raw)
    raw[at] ^= data.draw(st.integers(1, 255))
    assert taken(raw) != before


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_one_changed_word_is_caught_whatever_it_becomes(data: st.DataObject) -> None:
    raw = noise(data.draw(st.integers(8, 5000)), data.draw(st.integers(0, 99)))
    at = 8 * data.draw(st.integers(0, len(raw) // 8 - 1))
    before, word = taken(raw), bytes(raw[at : at + 8])
    other = data.draw(
        st.one_of(
            st.binary(min_size=8, max_size=8), st.just(bytes(8)), st.just(b"\0" * 7 + b"\x80")
        )
    )
    raw[at : at + 8] = other
    assert (taken(raw) != before) == (other != word)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_one_changed_word_of_a_large_tensor_is_caught(data: st.DataObject) -> None:
    raw = noise(LARGE, 3)
    at = data.draw(st.integers(0, LARGE - 1))
    flat = torch.frombuffer(raw, dtype=torch.uint8)
    before = int(checksums.checksum(flat))
    flat[at] ^= data.draw(st.integers(1, 255))
    assert int(checksums.checksum(flat)) != before


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_words_that_moved_are_caught(data: st.DataObject) -> None:
    raw = noise(data.draw(st.integers(16, 5000)), data.draw(st.integers(0, 99)))
    words = st.integers(0, len(raw) // 8 - 1)
    one, other = 8 * data.draw(words), 8 * data.draw(words)
    before, kept = taken(raw), bytes(raw)
    raw[one : one + 8], raw[other : other + 8] = kept[other : other + 8], kept[one : one + 8]
    assert (taken(raw) != before) == (bytes(raw) != kept)


@pytest.mark.parametrize("by", [1, 8, 64, 512 * 8, 4096])
def test_a_shifted_payload_is_caught(by: int) -> None:
    for size in (5000, LARGE):
        raw = noise(size, 1)
        assert taken(raw[by:] + raw[:by]) != taken(raw)


@pytest.mark.parametrize("size", [1, 7, 8, 4097, LARGE])
@pytest.mark.parametrize("offset", range(9))
def test_where_a_tensor_lies_makes_no_difference(size: int, offset: int) -> None:
    raw = noise(size, 2)
    around = torch.zeros(size + 9, dtype=torch.uint8)
    part = around[offset : offset + size]
    part.copy_(torch.frombuffer(raw, dtype=torch.uint8))
    assert int(checksums.checksum(part)) == taken(raw)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int64", "float8_e5m2", "bool"])
def test_dtype_shape_and_strides_make_no_difference(dtype: str) -> None:
    kind = getattr(torch, dtype)
    raw = noise(64 * 24 * kind.itemsize, 4)
    if dtype == "bool":
        raw = bytearray(byte & 1 for byte in raw)
    plain = torch.frombuffer(raw, dtype=torch.uint8).view(kind).view(64, 24)
    strided = torch.empty(64, 24, 3, dtype=kind)[..., 1]
    strided.copy_(plain)
    turned = plain.t().contiguous().t()
    for other in (plain, strided, turned, plain.reshape(2, 32, 24), plain.clone()):
        assert int(checksums.checksum(other)) == taken(raw)
    one = torch.empty(1, 2, dtype=kind)[:, 0]
    one.copy_(plain[:1, 0])
    assert int(checksums.checksum(one)) == taken(raw[: kind.itemsize])


def test_weights_are_what_the_proof_needs() -> None:
    place = torch.device("cpu")
    for seed, count in ((1, 5000), (3, 512), (5, 8)):
        weights = checksums._weights(count, seed, place)
        assert bool((weights & 1).all()), "odd: no change of a word is lost"
        assert weights.unique().numel() == count
    assert not bool((checksums._weights(512, 0, place) & 1).any())
