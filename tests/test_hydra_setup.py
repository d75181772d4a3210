"""The digest of conf/ changes with what it means, not with how it was checked out."""

from __future__ import annotations

from pathlib import Path

from hydra.core.config_store import ConfigStore

from breakeven.hydra_setup import conf_digest, register


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return folder


def test_the_digest_sees_names_and_contents_and_nothing_else(tmp_path: Path) -> None:
    files = {"config.yaml": "a: 1\n", "model/x.yaml": "b: 2\n"}
    base = conf_digest(write(tmp_path / "a", files))
    assert conf_digest(write(tmp_path / "b", dict(reversed(files.items())))) == base
    assert conf_digest(write(tmp_path / "c", files | {"config.yaml": "a: 1\r\n"})) == base, "line ends only"
    assert conf_digest(write(tmp_path / "d", files | {"notes.txt": "x"})) == base, "not YAML"
    assert conf_digest(write(tmp_path / "e", files | {"config.yaml": "a: 2\n"})) != base
    assert conf_digest(write(tmp_path / "f", {"config.yaml": "a: 1\n", "model/y.yaml": "b: 2\n"})) != base
    moved = {"config.yaml": "a: 1\nb: 2\n", "model/x.yaml": ""}
    assert conf_digest(write(tmp_path / "g", moved)) != base, "bytes moved from one file to another"


def test_registering_twice_is_harmless() -> None:
    register()
    register()
    assert "breakeven_schema.yaml" in ConfigStore.instance().repo
