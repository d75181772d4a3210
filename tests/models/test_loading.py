"""What is loaded is what the lock lists, whole, from disk, at the asked-for precision."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from breakeven import io, paths
from breakeven.errors import BreakevenError, ConfigError, DownloadError
from breakeven.models import loading, sources, store
from helpers.model_files import quiet, random_config, tiny_model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sources.fetch(random_config(), tmp_path_factory.mktemp("made") / "store", quiet)


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the stored model in the store of a fresh repository."""
    repository = tmp_path / "repository"
    (repository / "conf").mkdir(parents=True)
    (repository / "dvc.yaml").touch()
    monkeypatch.chdir(repository)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    return Path(shutil.copytree(made, paths.model_store() / made.name))


def write_lock(folder: Path, role: str = "target") -> Path:
    entry = {**store.manifest(folder), "folder": folder.name}
    io.write_json("build/models.lock.json", {"schema_version": 1, "models": {role: entry}, "workload": None})
    return Path("build/models.lock.json")


def reseal(folder: Path) -> None:
    """Make the manifest agree with the files, as if this had been downloaded."""
    content = store.manifest(folder)
    content["files"] = {p.name: store.file_facts(p) for p in folder.iterdir() if p.name != store.MANIFEST}
    io.write_json(folder / store.MANIFEST, content)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_target_computes_what_was_stored(folder: Path, dtype: str) -> None:
    target, tokenizer = loading.load_target(write_lock(folder), dtype=dtype, device="cpu", threads=1)
    original, _ = tiny_model()
    assert target.dtype == getattr(torch, dtype)
    assert (target.name, target.n_layers, target.vocab_size) == ("tiny", 2, len(tokenizer))
    assert not target.model.training
    assert not any(parameter.requires_grad for parameter in target.model.parameters())
    tokens = torch.arange(3, 43)[None]
    with torch.inference_mode():
        expected = original.to(target.dtype)(tokens).logits
        actual = target.forward(tokens, target.new_cache(40))
    # Logits have a standard deviation of 2; bfloat16 keeps 8 bits, and the two paths mask differently.
    torch.testing.assert_close(actual, expected, rtol=0.02, atol=1e-4 if dtype == "float32" else 0.3)


def test_threads_are_set_as_asked(folder: Path) -> None:
    loading.load_role(write_lock(folder, "draft"), "draft", dtype="float32", device="cpu", threads=1)
    assert torch.get_num_threads() == 1


def test_altered_weights_are_refused_before_they_are_loaded(folder: Path) -> None:
    lock = write_lock(folder)
    with (folder / "model.safetensors").open("r+b") as weights:
        weights.seek(-4, os.SEEK_END)
        weights.write(b"\xff\xff\xff\x7f")
    with pytest.raises(DownloadError, match=r"model\.safetensors has another sha256.*dvc repro download"):
        loading.load_target(lock, dtype="float32", device="cpu", threads=1)


def test_weights_consistent_with_their_manifest_but_not_with_the_lock_are_refused(folder: Path) -> None:
    lock = write_lock(folder)
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor * 2 for name, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    reseal(folder)
    with pytest.raises(DownloadError, match="not those that build/models.lock.json lists"):
        loading.load_target(lock, dtype="float32", device="cpu", threads=1)


def test_truncated_weights_are_named_even_without_their_hash(folder: Path) -> None:
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1000)
    reseal(folder)
    with pytest.raises(DownloadError, match=r"model\.safetensors has .* bytes, its header says .*truncated"):
        loading.load_folder(folder, dtype="float32", device="cpu")
    os.truncate(weights, 5)
    reseal(folder)
    with pytest.raises(DownloadError, match="truncated or no safetensors"):
        loading.load_folder(folder, dtype="float32", device="cpu")


def test_a_missing_tensor_is_not_silently_random(folder: Path) -> None:
    """Transformers fills what is missing with random values and only warns."""
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    reseal(folder)
    with pytest.raises(DownloadError, match=r"do not fill the model: missing keys model\.layers\.1\.mlp\.up_proj"):
        loading.load_folder(folder, dtype="float32", device="cpu")


def test_a_tensor_of_another_shape_is_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(16)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    reseal(folder)
    with pytest.raises(DownloadError, match=r"model\.norm\.weight|size mismatch|mismatched"):
        loading.load_folder(folder, dtype="float32", device="cpu")


@pytest.mark.parametrize("text", ["", "{", '{"version": "1.0"}'])
def test_a_damaged_tokenizer_is_refused(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    reseal(folder)
    with pytest.raises(DownloadError, match=r"tokenizer in .* cannot be loaded"):
        loading.load_folder(folder, dtype="float32", device="cpu")


def test_a_missing_role_says_which_there_are(folder: Path) -> None:
    with pytest.raises(BreakevenError, match=r"no 'draft' model, only target\. Configure it"):
        loading.load_role(write_lock(folder), "draft", dtype="float32", device="cpu", threads=1)


def test_a_missing_lock_names_the_command(folder: Path) -> None:
    with pytest.raises(BreakevenError, match="dvc repro"):
        loading.load_target("build/none.json", dtype="float32", device="cpu")


def test_an_unknown_dtype_names_the_valid_ones(folder: Path) -> None:
    with pytest.raises(ConfigError, match="Valid: float32, bfloat16"):
        loading.load_folder(folder, dtype="int4", device="cpu")


def test_too_little_memory_is_refused_before_loading(folder: Path) -> None:
    with pytest.raises(BreakevenError, match=r"tiny in float32 needs about .*hardware\.max_ram_gib"):
        loading.load_folder(folder, dtype="float32", device="cpu", max_ram_gib=1e-6)


def test_code_in_the_configuration_is_not_run(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    settings["auto_map"] = {"AutoModelForCausalLM": "modeling_evil.Evil"}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "modeling_evil.py").write_text("raise SystemExit('foreign code ran')")
    with pytest.raises(DownloadError, match=r"modeling_evil\.py does not belong there"):
        loading.load_folder(folder, dtype="float32", device="cpu")
    reseal(folder)
    model, _ = loading.load_folder(folder, dtype="float32", device="cpu")
    assert type(model).__name__ == "LlamaForCausalLM"
