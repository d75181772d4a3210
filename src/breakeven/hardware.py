"""What this machine is: a content-stable fingerprint that every timing depends on, and a check that a target is here.

DVC's run cache replays old timings, so a timed stage depends on the file written here: the same machine gives the
same bytes (skipped), any other machine other bytes (measured again). Nothing volatile goes in: no clock frequency,
load, free memory or time. torch is imported only for targets that need its devices.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import TypedDict

import psutil

from breakeven.config import HardwareConfig
from breakeven.errors import HardwareError
from breakeven.io import sha256_json

MACHINE_ID_DIGITS = 12
# What decides whether a CPU multiplies bfloat16 natively; the report shows it beside the timings.
_CPU_FEATURES = ("amx_bf16", "amx_tile", "avx512_bf16", "avx512f", "avx2", "bf16", "asimd", "sve")
_MACHINE_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


class Fingerprint(TypedDict):
    """build/hardware.json."""

    machine: str  # 12 hex digits: the key of every timing
    target: str  # hardware.name
    device: str  # cpu | cuda | mps
    device_names: list[str]  # accelerators of that kind; empty on cpu
    cpu_model: str
    cpu_features: list[str]  # instruction sets that matter here
    physical_cores: int  # that this process may use
    threads: int  # torch threads of every stage
    ram_gib: int  # rounded
    os: str
    python: str
    torch: str


def fingerprint(target: HardwareConfig) -> Fingerprint:
    """Describe this machine as the given target sees it.

    Raises:
        HardwareError: the target is not here; says what is.
    """
    names = require(target)
    return _describe(target.name, target.device, names, resolve_threads(target))


def identity() -> str:
    """Return the machine's id without any target: who ran a sweep job."""
    return _describe("", "cpu", [], 0)["machine"]


def _describe(name: str, device: str, device_names: list[str], threads: int) -> Fingerprint:
    described = Fingerprint(
        machine="",
        target=name,
        device=device,
        device_names=device_names,
        cpu_model=cpu_model(),
        cpu_features=cpu_features(),
        physical_cores=physical_cores(),
        threads=threads,
        ram_gib=ram_gib(),
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        torch=importlib.metadata.version("torch"),
    )
    described["machine"] = sha256_json({**described, "installation": _installation_id()})[:MACHINE_ID_DIGITS]
    return described


def require(target: HardwareConfig) -> list[str]:
    """Check that a hardware target is here, and return the names of its devices (empty for cpu).

    Raises:
        HardwareError: no such device, another device, no native support for the dtype, or too many threads.
    """
    available = os.cpu_count() or 1
    if target.threads > available:
        raise HardwareError(
            f"hardware.threads is {target.threads}, but this machine has {available} logical CPUs. "
            "Use 0 for all physical cores."
        )
    if target.device == "cpu":
        return []
    return _require_cuda(target) if target.device == "cuda" else _require_mps(target)


def _require_cuda(target: HardwareConfig) -> list[str]:
    import torch

    if not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no NVIDIA device"
        raise HardwareError(f"hardware={target.name} needs a CUDA device, but {why}. {what_is_here()}")
    # Stages use the first device; CUDA_VISIBLE_DEVICES chooses another.
    name = torch.cuda.get_device_name(0)
    if target.device_name_contains not in name:
        raise HardwareError(
            f"hardware={target.name} needs a device whose name contains {target.device_name_contains!r}. "
            f"{what_is_here()}"
        )
    if target.dtype == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise HardwareError(
            f"hardware={target.name} asks for bfloat16, but {name} only emulates it. Set hardware.dtype=float16."
        )
    return [name]


def _require_mps(target: HardwareConfig) -> list[str]:
    import torch

    if not torch.backends.mps.is_available():
        raise HardwareError(f"hardware={target.name} needs Apple's Metal. {what_is_here()}")
    if target.dtype == "float64":
        raise HardwareError("Metal has no float64. Set hardware.dtype=float32 or float16.")
    return [cpu_model()]


def what_is_here() -> str:
    """Say in one sentence which devices this machine has, and which targets fit."""
    import torch

    devices = [f"{cpu_model()} ({physical_cores()} cores, {ram_gib()} GiB)"]
    fitting = ["cpu_bf16", "cpu_fp32"]
    if torch.cuda.is_available():
        devices += [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        fitting.append("a cuda_* target whose device_name_contains matches")
    if torch.backends.mps.is_available():
        devices.append("Apple Metal")
        fitting.append("mps")
    return f"Here: {'; '.join(devices)}. Use hardware={' or '.join(fitting)}."


def resolve_threads(target: HardwareConfig) -> int:
    """Return the number of torch threads: `hardware.threads`, or all usable physical cores for 0.

    A second thread on the same core shares its vector units, so physical cores are the useful count.
    """
    return target.threads or physical_cores()


def physical_cores() -> int:
    """Count the physical cores that this process may use: CPU affinity and container quota respected."""
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    quota = _cgroup_cpus()
    return max(1, min(cores, quota) if quota else cores)


def _cgroup_cpus() -> int | None:
    """Return the whole CPUs that a cgroup v2 quota allows (`docker --cpus`), or None without a quota."""
    try:
        quota, period = _CGROUP_QUOTA.read_text(encoding="ascii").split()
        return None if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return None


def ram_gib() -> int:
    """Return the installed memory in GiB, rounded: a kernel update may move the last megabytes."""
    return round(psutil.virtual_memory().total / 2**30)


def cpu_model() -> str:
    """Return the CPU's marketing name."""
    return _cpuinfo_field("model name") or platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    """Return the instruction sets of this CPU that matter for bfloat16, in a fixed order."""
    present = set((_cpuinfo_field("flags") or _cpuinfo_field("Features") or "").split())
    return [feature for feature in _CPU_FEATURES if feature in present]


def _cpuinfo_field(name: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")


def _installation_id() -> str:
    """Return what tells two machines of one make apart; empty where the system keeps no such file."""
    for file in _MACHINE_ID_FILES:
        try:
            return file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
    return ""
