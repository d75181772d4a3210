"""A folder of the user's: data files are copied and pinned by content; code and pickles stay outside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from breakeven.errors import DownloadError
from breakeven.models import sources, store
from helpers.model_files import local_config, quiet, save_folder, write_gguf


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("model") / "mine")


@pytest.fixture
def mine(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "mine"))


def test_only_data_files_are_taken(mine: Path, tmp_path: Path) -> None:
    (mine / "modeling_mine.py").write_text("raise SystemExit")
    (mine / "pytorch_model.bin").write_bytes(b"\x80\x04")
    (mine / "onnx").mkdir()
    folder = sources.fetch(local_config(mine), tmp_path / "store", quiet)
    manifest = store.verify(folder)
    assert {Path(name).suffix for name in manifest["files"]} == {".json", ".safetensors", ".jinja"}
    assert (manifest["architecture"], manifest["n_layers"], manifest["vocab"]) == ("llama", 2, 281)
    assert str(tmp_path) not in json.dumps(manifest), "an absolute path would make the lock differ between machines"


def test_a_later_change_of_the_folder_is_another_model(mine: Path, tmp_path: Path) -> None:
    first = sources.fetch(local_config(mine), tmp_path / "store", quiet)
    settings = json.loads((mine / "generation_config.json").read_text())
    (mine / "generation_config.json").write_text(json.dumps({**settings, "temperature": 0.5}))
    second = sources.fetch(local_config(mine), tmp_path / "store", quiet)
    assert first != second
    assert store.verify(first)
    assert store.verify(second)


def test_the_same_content_elsewhere_is_the_same_model(mine: Path, tmp_path: Path) -> None:
    first = sources.fetch(local_config(mine), tmp_path / "store", quiet)
    moved = mine.rename(tmp_path / "moved")
    assert sources.fetch(local_config(moved), tmp_path / "store", quiet) == first


def test_pickles_alone_are_refused_and_the_safetensors_way_is_told(mine: Path, tmp_path: Path) -> None:
    (mine / "model.safetensors").rename(mine / "pytorch_model.bin")
    with pytest.raises(DownloadError, match=r"only pickled weights \(pytorch_model\.bin\).*safetensors"):
        sources.fetch(local_config(mine), tmp_path / "store", quiet)


def test_a_truncated_weight_file_is_refused_and_not_stored(mine: Path, tmp_path: Path) -> None:
    weights = mine / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(DownloadError, match=r"model\.safetensors has .* bytes, its header says"):
        sources.fetch(local_config(mine), tmp_path / "store", quiet)
    assert not list((tmp_path / "store").glob("mine-*"))


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_an_incomplete_folder_is_refused(mine: Path, tmp_path: Path, missing: str) -> None:
    (mine / missing).unlink()
    with pytest.raises(DownloadError, match="config.json|tokenizer"):
        sources.fetch(local_config(mine), tmp_path / "store", quiet)
    assert not list((tmp_path / "store").glob("mine-*"))


def test_an_unsupported_architecture_is_refused_by_name(mine: Path, tmp_path: Path) -> None:
    settings = json.loads((mine / "config.json").read_text())
    (mine / "config.json").write_text(json.dumps({**settings, "model_type": "mamba"}))
    with pytest.raises(DownloadError, match=r"'mamba' is not supported\. Supported: llama"):
        sources.fetch(local_config(mine), tmp_path / "store", quiet)


def test_a_gguf_file_is_converted(tmp_path: Path) -> None:
    folder = sources.fetch(local_config(write_gguf(tmp_path / "tiny.gguf")), tmp_path / "store", quiet)
    manifest = store.verify(folder)
    assert manifest["dequantized_from"] == "F32"
    assert "model.safetensors" in manifest["files"]


@pytest.mark.parametrize("name", ["nowhere", "notes.txt"])
def test_a_path_that_is_no_model_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DownloadError, match="does not exist|neither|not .gguf"):
        sources.fetch(local_config(tmp_path / name), tmp_path / "store", quiet)
