"""A folder under its real name is whole; whatever happens to its files later is seen."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from breakeven import io
from breakeven.config import SOURCE_KINDS
from breakeven.errors import BreakevenError, DownloadError
from breakeven.models import store
from helpers.model_files import quiet

CONTENT = {"weights.bin": bytes(range(256)) * 40, "config.json": b"{}"}


def fill(partial: Path) -> dict[str, Any]:
    for name, content in CONTENT.items():
        (partial / "ready" / name).write_bytes(content)
    return {"name": "thing"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return store.install(tmp_path / "store", "thing-0123456789ab", fill, quiet)


def alter_keeping_size_and_mtime(path: Path) -> None:
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    with path.open("r+b") as stream:
        stream.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_a_whole_folder_is_reused_without_preparing_again(folder: Path) -> None:
    def never(partial: Path) -> dict[str, Any]:
        raise AssertionError("prepared although it was there")

    assert store.install(folder.parent, folder.name, never, quiet) == folder
    manifest = store.verify(folder)
    assert manifest["name"] == "thing"
    assert manifest["files"]["weights.bin"] == {"bytes": 10240, "sha256": io.sha256_file(folder / "weights.bin")}
    assert not (folder.parent / ".partial" / folder.name).exists()


@pytest.mark.parametrize("verified_before", [True, False])
def test_one_flipped_bit_is_seen_although_size_and_mtime_are_the_same(folder: Path, verified_before: bool) -> None:
    if verified_before:
        store.verify(folder)
    alter_keeping_size_and_mtime(folder / "weights.bin")
    with pytest.raises(DownloadError, match=r"weights\.bin has another sha256.*dvc repro download"):
        store.verify(folder)


def test_truncated_missing_and_extra_files_are_named(folder: Path) -> None:
    os.truncate(folder / "weights.bin", 10000)
    with pytest.raises(DownloadError, match=r"weights\.bin has 10000 bytes instead of 10240 \(truncated"):
        store.verify(folder)
    (folder / "weights.bin").unlink()
    with pytest.raises(DownloadError, match=r"weights\.bin is missing"):
        store.verify(folder)
    (folder / "weights.bin").write_bytes(CONTENT["weights.bin"])
    assert store.find_problem(folder) is None
    (folder / "modeling_evil.py").write_text("print('hi')")
    with pytest.raises(DownloadError, match=r"modeling_evil\.py does not belong there"):
        store.verify(folder)


def test_a_consistent_folder_of_other_content_is_not_what_the_lock_lists(folder: Path) -> None:
    listed = store.manifest(folder)["files"]
    assert store.verify(folder, listed)
    other = {**listed, "config.json": {"bytes": 2, "sha256": "0" * 64}}
    with pytest.raises(DownloadError, match=r"not those that build/models\.lock\.json lists"):
        store.verify(folder, other)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 1}', '{"schema_version": 99, "files": {}}'])
def test_a_damaged_manifest_is_no_manifest(folder: Path, text: str) -> None:
    (folder / store.MANIFEST).write_text(text)
    with pytest.raises(DownloadError, match="manifest"):
        store.verify(folder)


def test_unchanged_files_are_not_read_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.verify(folder)
    read: list[str] = []
    original = io.sha256_file

    def counting(path: str | Path) -> str:
        read.append(Path(path).name)
        return original(path)

    monkeypatch.setattr(io, "sha256_file", counting)
    store.verify(folder)
    assert read == []
    os.utime(folder / "weights.bin")
    store.verify(folder)
    assert read == ["weights.bin"]


def test_verification_works_where_stamps_cannot_be_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str | Path, value: object) -> None:
        raise BreakevenError("read-only")

    monkeypatch.setattr(io, "write_json", refuse)
    (folder.parent / ".stamps" / f"{folder.name}.json").unlink()
    assert store.verify(folder)["name"] == "thing"


def test_verifying_needs_no_torch() -> None:
    modules = "breakeven.models.lock, breakeven.models.sources." + ", breakeven.models.sources.".join(SOURCE_KINDS)
    code = f"import sys, {modules}; assert not {{'torch', 'transformers'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("error", [KeyboardInterrupt, DownloadError, RuntimeError])
def test_an_interrupted_preparation_is_never_taken_for_whole(tmp_path: Path, error: type[BaseException]) -> None:
    def interrupted(partial: Path) -> dict[str, Any]:
        (partial / "ready" / "weights.bin").write_bytes(b"half")
        (partial / "kept").write_text("resume from here")
        raise error("stop")

    with pytest.raises(error):
        store.install(tmp_path, "thing-1", interrupted, quiet)
    assert not (tmp_path / "thing-1").exists()
    with pytest.raises(DownloadError):
        store.verify(tmp_path / "thing-1")

    def resumed(partial: Path) -> dict[str, Any]:
        assert (partial / "kept").read_text() == "resume from here"
        assert not any((partial / "ready").iterdir()), "half a file of the first try got into the second"
        return fill(partial)

    assert store.verify(store.install(tmp_path, "thing-1", resumed, quiet))


def test_a_damaged_folder_is_made_again_and_keeps_its_place_if_that_fails(folder: Path) -> None:
    os.truncate(folder / "weights.bin", 5)

    def unreachable(partial: Path) -> dict[str, Any]:
        raise DownloadError("no network")

    with pytest.raises(DownloadError, match="no network"):
        store.install(folder.parent, folder.name, unreachable, quiet)
    assert (folder / "weights.bin").stat().st_size == 5
    lines: list[str] = []
    store.install(folder.parent, folder.name, fill, lines.append)
    assert "truncated" in lines[0]
    assert (folder / "weights.bin").read_bytes() == CONTENT["weights.bin"]


def test_a_full_disk_is_a_refusal_and_leaves_no_folder(tmp_path: Path) -> None:
    def full(partial: Path) -> dict[str, Any]:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(BreakevenError, match=r"No space left.*nothing was left half-written"):
        store.install(tmp_path, "thing-1", full, quiet)
    assert not (tmp_path / "thing-1").exists()


def test_too_little_disk_or_memory_is_refused_beforehand(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"needs 1000000\.00 GiB on disk"):
        store.require_disk(tmp_path / "new", 1_000_000 * store.GIB, "that")
    with pytest.raises(BreakevenError, match=r"5\.00 GiB of memory, more than 4\.00 GiB \(hardware\.max_ram_gib\)"):
        store.require_ram(5 * store.GIB, 4.0, "that")
    with pytest.raises(BreakevenError, match="what this machine has available"):
        store.require_ram(1_000_000 * store.GIB, 0.0, "that")
    store.require_disk(tmp_path, 1, "that")
    store.require_ram(5 * store.GIB, 6.0, "that")


CONCURRENT = """
import os, sys, time
from pathlib import Path
from breakeven.models import store
root = Path(sys.argv[1])
def prepare(partial):
    with (root / "log").open("a") as log: log.write("start\\n")
    while len(list(root.glob("here-*"))) < int(sys.argv[2]): time.sleep(0.02)
    time.sleep(0.5)
    (partial / "ready" / "a").write_text("x")
    with (root / "log").open("a") as log: log.write("end\\n")
    return {}
(root / f"here-{os.getpid()}").touch()
store.install(root / "store", "thing-1", prepare, print)
"""


def test_two_processes_at_once_prepare_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CONCURRENT, str(tmp_path), "3"]  # each waits until all three are there
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "start\nend\n"
    assert any("waiting" in output for output in outputs)
    assert store.verify(tmp_path / "store" / "thing-1")


def test_a_killed_process_does_not_block_the_next(tmp_path: Path) -> None:
    slow = CONCURRENT.replace("time.sleep(0.5)", "time.sleep(60)")
    first = subprocess.Popen([sys.executable, "-c", slow, str(tmp_path), "1"])
    deadline = time.monotonic() + 30
    while not (tmp_path / "log").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    first.kill()
    first.wait()
    assert not (tmp_path / "store" / "thing-1").exists()
    subprocess.run([sys.executable, "-c", CONCURRENT, str(tmp_path), "1"], check=True, timeout=60)
    assert store.verify(tmp_path / "store" / "thing-1")


def test_the_folder_name_tells_sources_apart() -> None:
    names = {store.folder_name("m", {"repo": "a/b", "revision": letter * 40}) for letter in "abc"}
    assert len(names) == 3
    assert store.folder_name("m", {"a": 1, "b": 2}) == store.folder_name("m", {"b": 2, "a": 1})
    assert json.dumps(sorted(names)).count("m-") == 3
