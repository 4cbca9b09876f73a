"""Making pages known to a device's runtime: the calls, their failures, and what is undone."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pinning = pytest.importorskip("arcpp.backends.pinning")

AT, SIZE = 0x7F00_0000_1000, 1 << 20
CUDA, XPU = torch.device("cuda", 0), torch.device("xpu", 0)
UNINITIALIZED = 0x78000001


class FakeCudart:
    def __init__(self, status: int = 0) -> None:
        self.status, self.calls = status, []

    def cudaHostRegister(self, *arguments: int) -> int:  # noqa: N802 (CUDA's name)
        self.calls.append(("register", *arguments))
        return self.status

    def cudaHostUnregister(self, *arguments: int) -> int:  # noqa: N802
        self.calls.append(("unregister", *arguments))
        return 0


class FakeLoader:
    """libze_loader with one driver, whose extension is two real C functions."""

    DRIVER = 0xD1

    def __init__(
        self, *, init: int = 0, drivers: int = 1, lacks: str = "", imports: int = 0
    ) -> None:
        self.init, self.drivers, self.lacks = init, drivers, lacks
        self.calls: list[tuple[Any, ...]] = []
        pages = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        release = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

        def take(*arguments: int) -> int:
            self.calls.append(("import", *arguments))
            return imports

        def give_back(*arguments: int) -> int:
            self.calls.append(("release", *arguments))
            return 0

        self.functions = {
            b"zexDriverImportExternalPointer": pages(take),
            b"zexDriverReleaseImportedPointer": release(give_back),
        }

    def zeInit(self, flags: int) -> int:  # noqa: N802 (Level Zero's names)
        return self.init

    def zeDriverGet(self, count: Any, driver: Any) -> int:  # noqa: N802
        count._obj.value, driver._obj.value = self.drivers, self.DRIVER
        return 0

    def zeDriverGetExtensionFunctionAddress(  # noqa: N802
        self, driver: Any, name: bytes, found: Any
    ) -> int:
        assert driver.value == self.DRIVER
        if name.decode() == self.lacks:
            return 0x78000003  # unsupported feature
        found._obj.value = ctypes.cast(self.functions[name], ctypes.c_void_p).value
        return 0


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    pinning._level_zero.cache_clear()
    yield
    pinning._level_zero.cache_clear()


@pytest.fixture(name="pins", params=[True, False], ids=["can pin memory", "cannot"])
def _pins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    def empty(*_size: int, pin_memory: bool = False) -> object:
        assert pin_memory
        if not request.param:
            raise RuntimeError("Cannot access accelerator device when none is available.")
        return object()

    monkeypatch.setattr(torch, "empty", empty)
    return bool(request.param)


def cuda(monkeypatch: pytest.MonkeyPatch, runtime: Any) -> Any:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    return pinning.pin(AT, SIZE, CUDA)


def xpu(monkeypatch: pytest.MonkeyPatch, loader: Any) -> Any:
    def load(name: str) -> Any:
        assert name == "libze_loader.so.1"
        if isinstance(loader, Exception):
            raise loader
        return loader

    # only this module's ctypes: the fake loader needs the real one
    monkeypatch.setattr(pinning, "ctypes", SimpleNamespace(**{**vars(ctypes), "CDLL": load}))
    return pinning.pin(AT, SIZE, XPU)


def test_cuda_registers_and_unregisters(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeCudart()
    found = cuda(monkeypatch, runtime)
    assert (found.kind, found.why) == ("registered", None)
    found.release()
    assert runtime.calls == [("register", AT, SIZE, 0), ("unregister", AT)]


def test_cuda_that_refuses(monkeypatch: pytest.MonkeyPatch, pins: bool) -> None:
    runtime = FakeCudart(2)
    found = cuda(monkeypatch, runtime)
    assert found.kind == ("bounce" if pins else "pageable")
    assert found.why == f"cudaHostRegister of {SIZE} bytes failed with 2"
    found.release()
    assert runtime.calls == [("register", AT, SIZE, 0)], "what was not registered stays so"


def test_xpu_imports_and_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = FakeLoader()
    found = xpu(monkeypatch, loader)
    assert (found.kind, found.why) == ("imported", None)
    found.release()
    assert loader.calls == [
        ("import", loader.DRIVER, AT, SIZE),
        ("release", loader.DRIVER, AT),
    ]


@pytest.mark.parametrize(
    ("loader", "why"),
    [
        (OSError("libze_loader.so.1: cannot open\nshared object file"), "cannot open shared"),
        (FakeLoader(init=UNINITIALIZED), "zeInit failed with 0x78000001"),
        (FakeLoader(init=UNINITIALIZED - 2**32), "zeInit failed with 0x78000001"),
        (FakeLoader(drivers=0), "Level Zero has no driver"),
        (FakeLoader(lacks="zexDriverImportExternalPointer"), "has no zexDriverImportExternal"),
        (FakeLoader(lacks="zexDriverReleaseImportedPointer"), "has no zexDriverReleaseImported"),
        (FakeLoader(imports=0x70000003), "zexDriverImportExternalPointer failed with 0x70000003"),
    ],
    ids=["no loader", "no start", "signed", "no driver", "no import", "no release", "refused"],
)
def test_xpu_that_cannot_import(
    monkeypatch: pytest.MonkeyPatch, pins: bool, loader: Any, why: str
) -> None:
    found = xpu(monkeypatch, loader)
    assert found.kind == ("bounce" if pins else "pageable")
    assert why in found.why
    assert len(found.why.splitlines()) == 1
    found.release()
    assert ("release", FakeLoader.DRIVER, AT) not in getattr(loader, "calls", [])


def test_other_devices_bounce(pins: bool) -> None:
    found = pinning.pin(AT, SIZE, torch.device("mps"))
    assert found.kind == ("bounce" if pins else "pageable")
    assert found.why == "no way to pin pages for mps"
    found.release()
