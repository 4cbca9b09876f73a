"""Advice on torch, hosts, the plugin and the limits of this process."""

from __future__ import annotations

from arcpp.probe import child
from arcpp.units import GiB, MiB, format_gib

from .compatibility import known, range_of
from .facts import Facts
from .finding import ADVICE, BROKEN, ELSEWHERE, UNCHECKED, Found, discrete

_SHM = "/dev/shm"  # noqa: S108  (a mount, not a file of ours)
_SHM_BYTES = 1 * GiB  # vLLM's queues and arcpp's rings; containers give 64 MiB by default
_MEMLOCK = 256 * MiB
_MASKS = ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR")


def torch(facts: Facts) -> Found:
    outcome, cards = facts.sources.get("torch"), discrete(facts)
    if outcome is None:
        if facts.vllm is not None:
            yield BROKEN, "vLLM is installed without torch", "install the torch vLLM asks for"
        else:
            yield UNCHECKED, "torch is not installed in this Python", ELSEWHERE
        return
    version = facts.packages.get("torch", "unknown")
    if outcome.status != child.OK:
        yield (
            BROKEN,
            f"torch {version} cannot be asked for devices: {outcome.detail}",
            "run python -c 'import torch' and mend what it says; a hanging driver needs a reboot",
        )
        return
    build = facts.build
    if cards and not build.get("xpu"):
        kind = "CUDA" if build.get("cuda") else "ROCm" if build.get("hip") else "CPU"
        yield (
            BROKEN,
            f"torch {build.get('version', version)} is a {kind} build, and {len(cards)} Intel "
            f"card{'s are' if len(cards) > 1 else ' is'} here: it cannot use them",
            "replace it by the +xpu build, which PyPI does not carry: pip install torch "
            "--index-url https://download.pytorch.org/whl/xpu (or use the image "
            "vllm/vllm-openai-xpu)",
        )
    elif cards and not build.get("xpu_devices"):
        masks = ", ".join(name for name in _MASKS if name in facts.variables)
        yield (
            BROKEN,
            f"torch {version} is an XPU build and sees no card",
            f"unset {masks}" if masks else "mend the driver first, see above",
        )
    elif cards and len(cards) > int(build.get("xpu_devices", 0)):
        masks = ", ".join(name for name in _MASKS if name in facts.variables) or "no mask is set"
        yield (
            ADVICE,
            f"torch sees {build.get('xpu_devices')} of {len(cards)} Intel cards ({masks})",
            "leave it if that is meant; else unset the mask",
        )
    if "intel-extension-for-pytorch" in facts.packages:
        yield (
            ADVICE,
            "intel-extension-for-pytorch is installed; it ended with torch 2.8",
            "pip uninstall intel-extension-for-pytorch: newer torch does not need it",
        )


def sources(facts: Facts) -> Found:
    """Sources of memory figures other than torch."""
    for name in ("levelzero", "openvino"):
        outcome = facts.sources.get(name)
        if outcome is not None and outcome.status != child.OK:
            yield ADVICE, f"{name} cannot be asked: {outcome.detail}", "its figures are left out"
        elif outcome is not None and outcome.data.get("error") and discrete(facts):
            yield (
                ADVICE,
                f"{name} gives no figures: {outcome.data['error']}",
                "install the Level Zero loader (libze1); some drivers want CAP_PERFMON or root",
            )
    if discrete(facts) and "levelzero" not in facts.sources and facts.build.get("xpu"):
        yield (
            ADVICE,
            "pyzes is not installed, so there is no second opinion on free memory",
            "pip install pyzes",
        )


def hosts(facts: Facts) -> Found:
    if facts.vllm is None and "openvino" not in facts.packages:
        yield (
            ADVICE,
            "neither vLLM nor OpenVINO is installed in this Python",
            f"{ELSEWHERE}, for example inside the vllm/vllm-openai-xpu image",
        )
    if facts.vllm is not None:
        yield from _vllm(facts, facts.vllm)
    openvino = facts.packages.get("openvino")
    if openvino is not None and not known("openvino", openvino):
        does = f"arcpp was tried with {range_of('openvino')}"
        yield ADVICE, f"OpenVINO {openvino} is not in the compatibility table", does


def _vllm(facts: Facts, version: str) -> Found:
    if not known("vllm", version):
        yield (
            ADVICE,
            f"vLLM {version} is not in the compatibility table",
            f"arcpp is for vLLM {range_of('vllm')}; others are refused when an internal is missing",
        )
    if discrete(facts) and "cpu" in version:
        yield (
            BROKEN,
            f"vLLM {version} is a CPU build and leaves the Intel cards alone",
            "use the XPU build (image vllm/vllm-openai-xpu) and install arcpp beside it",
        )
    elif discrete(facts) and facts.build.get("xpu") and "vllm-xpu-kernels" not in facts.packages:
        yield BROKEN, "vLLM's XPU kernels are missing", "pip install vllm-xpu-kernels"
    outcome = facts.adapter
    if outcome is not None and outcome.status != child.OK:
        does = "mend vLLM first: python -c 'import vllm'"
        yield BROKEN, f"vLLM cannot be looked at: {outcome.detail}", does
    elif outcome is not None and outcome.data.get("missing"):
        missing = ", ".join(str(name) for name in outcome.data["missing"])
        does = f"use vLLM {outcome.data.get('supported')}, or a newer arcpp"
        yield BROKEN, f"vLLM {version} lacks what arcpp needs: {missing}", does


def plugin(facts: Facts) -> Found:
    if facts.vllm is None:
        yield UNCHECKED, "vLLM is not installed in this Python", ELSEWHERE
        return
    if not facts.entry_point:
        yield (
            BROKEN,
            "vLLM will not find arcpp: no entry point arcpp in vllm.general_plugins",
            "install arcpp with pip into vLLM's own Python (a PYTHONPATH is not enough)",
        )
    allowed = facts.variables.get("VLLM_PLUGINS")
    if allowed is not None and "arcpp" not in [name.strip() for name in allowed.split(",")]:
        yield (
            BROKEN,
            f"VLLM_PLUGINS={allowed!r} keeps vLLM from loading arcpp",
            f"unset it, or set VLLM_PLUGINS={','.join(filter(None, [allowed, 'arcpp']))}",
        )


def limits(facts: Facts) -> Found:
    if facts.shm_total is None:
        yield BROKEN, f"{_SHM} is not there", "mount a tmpfs on it; vLLM's processes talk there"
    elif facts.shm_total < _SHM_BYTES:
        yield (
            ADVICE,
            f"{_SHM} has {format_gib(facts.shm_total)} GiB",
            "give it 1 GiB or more: docker run --shm-size 8g, or --ipc host",
        )
    elif facts.shm_free is not None and facts.shm_free < _SHM_BYTES // 4:
        says = f"{_SHM} has {format_gib(facts.shm_free)} GiB left"
        yield ADVICE, says, "remove what servers that were killed left there"
    accelerated = any(device.usable for device in facts.devices)
    if accelerated and facts.memlock is not None and facts.memlock < _MEMLOCK:
        yield (
            ADVICE,
            f"memlock is limited to {format_gib(facts.memlock)} GiB",
            "raise it where drivers pin memory under this limit: ulimit -l unlimited, or docker "
            "run --ulimit memlock=-1",
        )
