"""A crash never leaves half a file under its real name."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from breakeven import io
from breakeven.errors import BreakevenError


def write_half(path: Path, error: type[BaseException]) -> None:
    with io.atomic_path(path) as temporary:
        temporary.write_text("half")
        raise error


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.name.endswith(".tmp")]


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    io.write_json(path, {"old": 1})
    with pytest.raises(RuntimeError):
        write_half(path, RuntimeError)
    assert io.read_json(path) == {"old": 1}
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupts_leave_nothing_behind_either(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        write_half(tmp_path / "a", error)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_refusal_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BreakevenError, match=r"No space left.*Free some disk space"):
        io.write_text(tmp_path / "a.txt", "text")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_really_full_device_raises_what_the_refusal_catches() -> None:
    with pytest.raises(OSError, match="No space left"), open("/dev/full", "w") as stream:
        stream.write("x")


def test_json_holds_no_nan_and_is_the_same_for_the_same_content(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    value = {"b": math.nan, "a": [np.float32(0.5), np.int64(3), -math.inf], "c": {"x": (1, 2)}}
    io.write_json(path, value)
    assert json.loads(path.read_text()) == {"a": [0.5, 3, None], "b": None, "c": {"x": [1, 2]}}
    first = path.read_bytes()
    io.write_json(path, dict(reversed(value.items())))
    assert path.read_bytes() == first
    assert io.sha256_json(value) == io.sha256_json(dict(reversed(value.items())))


def test_missing_and_broken_files_name_the_command_that_mends(tmp_path: Path) -> None:
    for read in (io.read_json, io.read_parquet):
        with pytest.raises(BreakevenError, match="dvc repro"):
            read(tmp_path / "absent")
        (tmp_path / "broken").write_text("{")
        with pytest.raises(BreakevenError, match=r"Delete it and run `dvc repro`"):
            read(tmp_path / "broken")


def test_tables_come_back_as_they_were(tmp_path: Path) -> None:
    table = pd.DataFrame({"a": [1, 2], "b": [[1.0], [2.0, 3.0]]})
    io.write_parquet(tmp_path / "t.parquet", table)
    found = io.read_parquet(tmp_path / "t.parquet")
    assert found["a"].tolist() == [1, 2]
    assert [list(x) for x in found["b"]] == [[1.0], [2.0, 3.0]]


def test_sha256_is_the_known_one(tmp_path: Path) -> None:
    (tmp_path / "abc").write_text("abc")
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert io.sha256_file(tmp_path / "abc") == expected
