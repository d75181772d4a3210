"""The fingerprint keys every timing: stable on this machine, different on any other; absent hardware is refused."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from breakeven import hardware, io
from breakeven.config import HardwareConfig
from breakeven.errors import HardwareError

CPU = HardwareConfig(
    name="cpu_bf16", device="cpu", device_name_contains="", dtype="bfloat16", threads=0, max_ram_gib=0.0,
    max_context_tokens=128,
)  # fmt: skip
CUDA = dataclasses.replace(CPU, name="cuda_a100", device="cuda", device_name_contains="A100")


def test_fingerprint_is_the_same_bytes_in_another_process() -> None:
    script = (
        "from breakeven import hardware; from breakeven.config import HardwareConfig; "
        "print(hardware.fingerprint(HardwareConfig('cpu_bf16', 'cpu', '', 'bfloat16', 0, 0.0, 128))['machine'])"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    assert printed == hardware.fingerprint(CPU)["machine"]
    assert len(printed) == hardware.MACHINE_ID_DIGITS
    assert int(printed, 16) >= 0


def test_fingerprint_does_not_import_torch_for_a_cpu() -> None:
    """Importing torch takes seconds, and this stage runs in every `dvc repro`."""
    script = (
        "import sys; from breakeven import hardware; from breakeven.config import HardwareConfig; "
        "hardware.fingerprint(HardwareConfig('cpu_bf16', 'cpu', '', 'bfloat16', 0, 0.0, 128)); "
        "print('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"
    )


@pytest.mark.parametrize(
    "patched, value",
    [
        ("cpu_model", lambda: "Another CPU"),
        ("physical_cores", lambda: 96),
        ("ram_gib", lambda: 512),
        ("_installation_id", lambda: "0123456789abcdef"),
        ("cpu_features", lambda: ["amx_bf16"]),
    ],
)
def test_any_difference_of_the_machine_changes_its_id(
    monkeypatch: pytest.MonkeyPatch, patched: str, value: Any
) -> None:
    before = hardware.fingerprint(CPU)["machine"]
    monkeypatch.setattr(hardware, patched, value)
    assert hardware.fingerprint(CPU)["machine"] != before


def test_target_and_threads_change_the_id_and_volatile_facts_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    before = hardware.fingerprint(CPU)
    assert hardware.fingerprint(dataclasses.replace(CPU, name="cpu_fp32"))["machine"] != before["machine"]
    other = 2 if before["threads"] == 1 else 1
    if (os.cpu_count() or 1) >= other:
        assert hardware.fingerprint(dataclasses.replace(CPU, threads=other))["machine"] != before["machine"]
    memory = namedtuple("memory", ["total", "available"])
    total = psutil.virtual_memory().total
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(total - 3_000_000, 1))
    assert hardware.fingerprint(CPU) == before


def test_fingerprint_holds_nothing_but_json_and_no_secret_id(tmp_path: Path) -> None:
    """The installation id tells machines apart; it goes into the digest, never into a file that people share."""
    described = hardware.fingerprint(CPU)
    io.write_json(tmp_path / "hardware.json", described)
    assert io.read_json(tmp_path / "hardware.json") == described
    secret = hardware._installation_id()
    if secret:
        assert secret not in (tmp_path / "hardware.json").read_text(encoding="utf-8")


def test_physical_cores_respect_affinity_and_container_quota(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 128 if logical else 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(hardware, "_CGROUP_QUOTA", quota)
    assert hardware.physical_cores() == 12
    for text, cores in (("max 100000", 12), ("400000 100000", 4), ("50000 100000", 1), ("nonsense", 12)):
        quota.write_text(text, encoding="ascii")
        assert hardware.physical_cores() == cores, text


def test_too_many_threads_are_refused_with_the_count_that_is_there() -> None:
    with pytest.raises(HardwareError, match=rf"this machine has {os.cpu_count()} logical CPUs"):
        hardware.require(dataclasses.replace(CPU, threads=(os.cpu_count() or 1) + 1))


def test_absent_cuda_is_refused_and_the_refusal_names_what_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(HardwareError) as refusal:
        hardware.fingerprint(CUDA)
    assert "cuda_a100" in str(refusal.value)
    assert hardware.cpu_model() in str(refusal.value)
    assert "hardware=cpu_bf16" in str(refusal.value)


def test_another_gpu_than_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend_gpu(monkeypatch, "Tesla T4", bf16=False)
    with pytest.raises(HardwareError, match="name contains 'A100'.*Tesla T4"):
        hardware.require(CUDA)


def test_bfloat16_is_refused_where_it_is_only_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend_gpu(monkeypatch, "Tesla T4", bf16=False)
    target = dataclasses.replace(CUDA, name="cuda_t4", device_name_contains="T4")
    with pytest.raises(HardwareError, match=r"hardware\.dtype=float16"):
        hardware.require(target)
    assert hardware.require(dataclasses.replace(target, dtype="float16")) == ["Tesla T4"]


def test_the_gpu_is_part_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = set()
    for name in ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"):
        _pretend_gpu(monkeypatch, name, bf16=True)
        described = hardware.fingerprint(CUDA)
        assert described["device_names"] == [name]
        ids.add(described["machine"])
    assert len(ids) == 2


def test_absent_metal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(HardwareError, match="Metal"):
        hardware.require(dataclasses.replace(CPU, name="mps", device="mps"))


def _pretend_gpu(monkeypatch: pytest.MonkeyPatch, name: str, *, bf16: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index=0: name)
    # PyTorch says "supported" for emulated bfloat16 unless asked not to.
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or bf16)
