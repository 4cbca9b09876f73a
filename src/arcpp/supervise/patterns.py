"""What runtimes and hosts write when something breaks, and what it means.

Each row: the kind, what the text looks like (searched, any case), and advice. The first row that
fits a line wins, so that rows are ordered from the telling to the vague. The strings are those of
the runtimes' sources and of public reports; tests/unit/data/fault_messages.json has them with
where they were seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .fault import FaultKind

RESET = (
    "stages are started again once the device answers; if it keeps coming back: look at `dmesg`, "
    "reset the device or reboot, update driver and firmware"
)
MEMORY = (
    "lower --max-model-len, --max-num-seqs or --max-num-batched-tokens, or give the device a "
    "larger `margin`; `arcpp plan` shows what each stage needs"
)
RESOURCES = (
    "the driver says this for too little memory and for a hung kernel alike: see `dmesg` for a "
    "hang, else lower --max-model-len or give the device a larger `margin`"
)
HOST_MEMORY = "host memory ran out: see `dmesg` and `free -g`, close other programs, add swap"
STALLED = (
    "a stage did not answer in time: if it was only slow, raise `step_timeout`; otherwise look "
    "at `dmesg` for a hung device"
)
PEER = "another stage or process is gone: its own fault says why"
LINK = (
    "a boundary did not arrive as it was sent: run `arcpp doctor`, and set `link_verification` "
    "to `device` or `link` to `ring`"
)
FINITE = (
    "a kernel or a damaged state produced no number: the request is computed again; if the same "
    "one fails every time, try another dtype and report the prompt's length"
)
STATE = (
    "something wrote past the end of a request's recurrent state: the request is computed again; "
    "report the model, its dtypes and the kernel in use"
)
KERNEL = "a kernel refused its input: an error of model or host, not of the device; report it"
DIED = "see the log above for its last lines"


@dataclass(frozen=True)
class Pattern:
    """One row. consequence: as in Fault."""

    kind: FaultKind
    looks_like: re.Pattern[str]
    advice: str
    consequence: bool = False


def _row(kind: FaultKind, looks_like: str, advice: str, consequence: bool = False) -> Pattern:
    return Pattern(kind, re.compile(looks_like, re.IGNORECASE), advice, consequence)


# Level Zero, Unified Runtime and its predecessor write the same names with their own prefixes.
_INTEL = r"\b(?:UR|ZE|ZES|PI)_(?:RESULT_)?(?:ERROR_)?"
# OpenVINO's GPU plugin and others print OpenCL's code only: "[GPU] clFinish, error code: -5".
_CL_CODE = r"\bcl[A-Z]\w+,? (?:error|error code|returned|status)[: (]+"

PATTERNS: tuple[Pattern, ...] = (
    # arcpp's own, by name: they arrive as text from another process.
    _row(FaultKind.NON_FINITE, r"\bNonFinite\b", FINITE),
    _row(FaultKind.LINK_CORRUPT, r"\bLinkCorrupt\b", LINK),
    _row(FaultKind.STATE_CORRUPT, r"\bStateCorrupt\b", STATE),
    _row(FaultKind.PEER_LOST, r"\bPeerLost\b", PEER, True),
    _row(FaultKind.STAGE_STALLED, r"\bDeadlineExceeded\b", STALLED),
    # Level Zero, Unified Runtime, SYCL
    _row(FaultKind.DEVICE_LOST, _INTEL + r"DEVICE_(?:LOST|REQUIRES_RESET)\b", RESET),
    _row(FaultKind.DEVICE_LOST, _INTEL + r"(?:DEVICE_NOT_AVAILABLE|UNINITIALIZED)\b", RESET),
    _row(FaultKind.DEVICE_LOST, r"\b0x7000000[16]\b|\bze:187904819[38]\b", RESET),
    _row(FaultKind.OUT_OF_DEVICE_MEMORY, _INTEL + r"OUT_OF_DEVICE_MEMORY\b", MEMORY),
    _row(FaultKind.OUT_OF_DEVICE_MEMORY, _INTEL + r"OUT_OF_HOST_MEMORY\b", HOST_MEMORY),
    _row(FaultKind.OUT_OF_DEVICE_MEMORY, _INTEL + r"OUT_OF_RESOURCES\b", RESOURCES),
    _row(FaultKind.OUT_OF_DEVICE_MEMORY, _INTEL + r"MEM_OBJECT_ALLOCATION_FAILURE\b", MEMORY),
    _row(FaultKind.OUT_OF_DEVICE_MEMORY, r"\b0x70000003\b", MEMORY),
    # OpenCL
    _row(FaultKind.DEVICE_LOST, r"\bCL_DEVICE_NOT_(?:AVAILABLE|FOUND)\b", RESET),
    _row(FaultKind.DEVICE_LOST, _CL_CODE + r"-[12]\b(?!\d)", RESET),
    _row(FaultKind.OUT_OF_DEVICE_MEMORY, r"\bCL_OUT_OF_RESOURCES?\b", RESOURCES),
    _row(FaultKind.OUT_OF_DEVICE_MEMORY, r"\bCL_MEM_OBJECT_ALLOCATION_FAILURE\b", MEMORY),
    _row(FaultKind.OUT_OF_DEVICE_MEMORY, r"\bCL_OUT_OF_HOST_MEMORY\b", HOST_MEMORY),
    _row(
        FaultKind.OUT_OF_DEVICE_MEMORY,
        r"\bCL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST\b|\bCL_EXEC_STATUS_ERROR\b",
        RESOURCES,
    ),
    _row(FaultKind.OUT_OF_DEVICE_MEMORY, _CL_CODE + r"-4\b(?!\d)", MEMORY),
    _row(FaultKind.OUT_OF_DEVICE_MEMORY, _CL_CODE + r"-(?:5|14)\b(?!\d)", RESOURCES),
    _row(FaultKind.OUT_OF_DEVICE_MEMORY, _CL_CODE + r"-6\b(?!\d)", HOST_MEMORY),
    # CUDA and its kernel driver
    _row(FaultKind.DEVICE_LOST, r"\bcudaErrorECCUncorrectable\b|uncorrectable ECC error", RESET),
    _row(
        FaultKind.DEVICE_LOST,
        r"illegal (?:memory access|instruction was encountered)|\bcudaErrorIllegalAddress\b",
        RESET,
    ),
    _row(FaultKind.DEVICE_LOST, r"unspecified launch failure|\bcudaErrorLaunchFailure\b", RESET),
    _row(
        FaultKind.DEVICE_LOST,
        r"\bcudaErrorLaunchTimeout\b|the launch timed out and was terminated",
        RESET,
    ),
    _row(
        FaultKind.DEVICE_LOST,
        r"\bcudaErrorDevicesUnavailable\b|CUDA-capable device\(s\) is/are busy or unavailable"
        r"|no CUDA-capable device is detected|\bcudaErrorHardwareStackError\b"
        r"|CUDA_ERROR_(?:ECC_UNCORRECTABLE|ILLEGAL_ADDRESS|LAUNCH_FAILED|LAUNCH_TIMEOUT)\b",
        RESET,
    ),
    # 63, 92 and 94 are notes about memory that was repaired or contained.
    _row(FaultKind.DEVICE_LOST, r"\bXid\b.{0,80}?: (?!63\b|92\b|94\b)\d+\b", RESET),
    _row(
        FaultKind.DEVICE_LOST,
        r"fallen off the bus|\bGPU is lost\b|unable to determine the device handle for gpu",
        RESET,
    ),
    _row(
        FaultKind.OUT_OF_DEVICE_MEMORY,
        r"\b(?:CUDA|XPU|HIP|MPS|GPU) out of memory|\bOutOfMemoryError\b"
        r"|\bcudaErrorMemoryAllocation\b|CUDA_ERROR_OUT_OF_MEMORY\b|CUDA error: out of memory"
        r"|CUBLAS_STATUS_ALLOC_FAILED\b",
        MEMORY,
    ),
    _row(FaultKind.STAGE_FAILED, r"device-side assert triggered", KERNEL),
    # Intel's kernel drivers
    _row(
        FaultKind.DEVICE_LOST,
        r"\bGPU HANG\b|\bdevice wedged\b|\bxe\b.{0,200}\bwedged\b|\bxe\b.{0,200}CAT[_ ]ERROR"
        r"|\bxe\b.{0,200}(?:Timedout job|Engine reset)|Fence expiration time out i915",
        RESET,
    ),
    # oneDNN and OpenVINO
    _row(FaultKind.DEVICE_LOST, r"\bdevice (?:is|was|has been) lost\b|\bdevice lost\b", RESET),
    _row(
        FaultKind.OUT_OF_DEVICE_MEMORY,
        r"exceeded max size of memory (?:object )?allocation|can NOT allocate memory block"
        r"|\bfailed to allocate .{0,200}\bbuffer\b"
        r"|No available memory for the cache blocks"
        r"|Free memory on device .{0,200} is less than desired",
        MEMORY,
    ),
    _row(
        FaultKind.OUT_OF_DEVICE_MEMORY,
        r"\bMemoryError\b|\bstd::bad_alloc\b|Cannot allocate memory|DefaultCPUAllocator: "
        r"(?:can't|not enough)|Out of memory: Killed process|oom-kill",
        HOST_MEMORY,
    ),
    _row(
        FaultKind.NON_FINITE,
        r"probability tensor contains either|\bnan in logits\b"
        r"|(?:contains?|found|produced) (?:nan|inf)\b",
        FINITE,
    ),
    # vLLM's own words for a worker that does not answer
    _row(FaultKind.STAGE_STALLED, r"RPC call to \w+ timed out", STALLED),
    _row(FaultKind.STAGE_STALLED, r"No available shared memory broadcast block", STALLED),
    # gloo, c10d, NCCL
    _row(
        FaultKind.STAGE_STALLED,
        r"Timed out waiting \d+ ?ms for|Application timeout caused pair closure"
        r"|Watchdog caught collective operation timeout|wait timeout after \d+ ?ms"
        r"|client socket has timed out",
        STALLED,
    ),
    _row(
        FaultKind.PEER_LOST,
        r"gloo.{0,200}(?:Connection (?:closed|reset|refused)|Broken pipe|Socket closed)"
        r"|Connection (?:closed|reset) by peer"
        r"|recvValue failed|failed to recv, got 0 bytes|Connection was likely closed"
        r"|remote process exited or there was a network error|Broken pipe"
        r"|\b(?:ConnectionResetError|BrokenPipeError|ConnectionRefusedError|EOFError)\b",
        PEER,
        True,
    ),
    # vLLM's words for "something else failed before"
    _row(
        FaultKind.STAGE_DIED,
        r"\bEngineDeadError\b|EngineCore encountered an issue|died unexpectedly"
        r"|\bEngine process \(pid \d+\) died|\b\w*Worker\w* pid \d+ died"
        r"|WorkerProc initialization failed|Engine core initialization failed"
        r"|\bEngine core proc\w* .{0,200} died|Executor failed\b",
        DIED,
        True,
    ),
    _row(FaultKind.PEER_LOST, r"(?:^|: )cancelled$|\bCancelledError\b", PEER, True),
    _row(FaultKind.STAGE_STALLED, r"\bTimeoutError\b|\btimed out\b", STALLED),
)
