"""Captured activations come back bit for bit, and a folder is whole or not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from breakeven.errors import BreakevenError
from breakeven.kv import activations


def meta(**changes: Any) -> dict[str, Any]:
    return {
        "model": "toy", "dtype": "float32", "n_layers": 2, "n_query_heads": 4, "n_kv_heads": 2, "head_dim": 8,
        "scaling": [0.5, 0.25], "windows": [None, 3], "text_ids": ["a", "b"], "token_ids": [[1, 2, 3], [4, 5, 6]],
    } | changes  # fmt: skip


def layer(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(2, heads, 3, 8, generator=generator).to(dtype)
        for name, heads in (("q_pre", 4), ("q_post", 4), ("k_pre", 2), ("k_post", 2), ("v", 2))
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_tensors_and_meta_come_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = tmp_path / "deep" / "activations"
    layers = [layer(0, dtype), layer(1, dtype)]
    activations.save(folder, meta(), iter(layers))
    assert activations.load_meta(folder) == meta()
    assert activations.n_tokens(activations.load_meta(folder)) == 3
    for index, expected in enumerate(layers):
        loaded = activations.load_layer(folder, index)
        assert loaded.keys() == expected.keys()
        for name, tensor in loaded.items():
            assert tensor.dtype == dtype
            assert torch.equal(tensor, expected[name]), name
    assert [p.name for p in folder.parent.iterdir()] == ["activations"]


def test_views_are_stored_as_what_they_show(tmp_path: Path) -> None:
    tensors = layer(0)
    tensors["v"] = tensors["v"].transpose(-1, -2).contiguous().transpose(-1, -2)
    tensors["q_pre"] = tensors["q_post"]  # GPT-2: the same storage twice
    activations.save(tmp_path / "a", meta(n_layers=1, scaling=[1.0], windows=[None]), [tensors])
    loaded = activations.load_layer(tmp_path / "a", 0)
    assert torch.equal(loaded["v"], tensors["v"])
    assert torch.equal(loaded["q_pre"], tensors["q_post"])


def test_the_same_activations_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        activations.save(tmp_path / name, meta(), [layer(0), layer(1)])
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert names == ["layer_00.safetensors", "layer_01.safetensors", "meta.json"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def interrupted() -> Iterator[dict[str, Tensor]]:
    yield layer(5)
    raise KeyboardInterrupt


def test_an_interrupted_capture_leaves_the_old_folder_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "activations"
    with pytest.raises(KeyboardInterrupt):
        activations.save(folder, meta(), interrupted())
    assert list(tmp_path.iterdir()) == []
    old = [layer(0), layer(1)]
    activations.save(folder, meta(), old)
    with pytest.raises(KeyboardInterrupt):
        activations.save(folder, meta(), interrupted())
    assert torch.equal(activations.load_layer(folder, 0)["v"], old[0]["v"])
    assert [p.name for p in tmp_path.iterdir()] == ["activations"]


def test_a_new_capture_replaces_the_old_one_entirely(tmp_path: Path) -> None:
    folder = tmp_path / "activations"
    activations.save(folder, meta(), [layer(0), layer(1)])
    activations.save(folder, meta(n_layers=1, scaling=[1.0], windows=[None]), [layer(7)])
    assert sorted(p.name for p in folder.iterdir()) == ["layer_00.safetensors", "meta.json"]
    assert torch.equal(activations.load_layer(folder, 0)["k_post"], layer(7)["k_post"])
    assert [p.name for p in tmp_path.iterdir()] == ["activations"]


def test_a_full_disk_is_a_refusal_that_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(BreakevenError, match="No space left on device.*Free some disk space"):
        activations.save(tmp_path / "activations", meta(), [layer(0), layer(1)])
    assert list(tmp_path.iterdir()) == []


def test_the_old_folder_comes_back_if_the_last_rename_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "activations"
    activations.save(folder, meta(), [layer(0), layer(1)])
    rename = Path.replace

    def fails(self: Path, target: Path) -> Path:
        if Path(target) == folder:
            raise OSError(13, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(BreakevenError, match="Permission denied"):
        activations.save(folder, meta(), [layer(2), layer(3)])
    assert torch.equal(activations.load_layer(folder, 0)["v"], layer(0)["v"])
    assert [p.name for p in tmp_path.iterdir()] == ["activations"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scaling": [0.5]}, "scaling and window of each of 2 layers"),
        ({"windows": [None]}, "scaling and window of each of 2 layers"),
        ({"token_ids": [[1, 2, 3], [4, 5]]}, "one length"),
        ({"token_ids": [[1, 2, 3]]}, "one length"),
        ({"text_ids": ["a", "a"]}, "names a text twice"),
        ({"n_kv_heads": 3}, "4 query heads cannot share 3 KV heads"),
        ({"extra": 1}, "extra"),
        ({"n_layers": 3, "scaling": [1.0] * 3, "windows": [None] * 3}, "2 layers were captured of a model with 3"),
        ({"head_dim": 16}, "layer 0 was captured as"),
        ({"n_query_heads": 2}, "layer 0 was captured as"),
    ],
)
def test_tensors_and_meta_that_disagree_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BreakevenError, match=message):
        activations.save(tmp_path / "a", meta(**changes), [layer(0), layer(1)])
    assert list(tmp_path.iterdir()) == []


def test_missing_and_damaged_files_are_refused_with_the_mend(tmp_path: Path) -> None:
    folder = tmp_path / "activations"
    with pytest.raises(BreakevenError, match="is missing.*dvc repro"):
        activations.load_meta(folder)
    activations.save(folder, meta(), [layer(0), layer(1)])
    path = folder / "layer_01.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(BreakevenError, match=r"layer_01.*cannot be read.*dvc repro"):
        activations.load_layer(folder, 1)
    path.unlink()
    with pytest.raises(BreakevenError, match=r"layer_01.*is missing.*dvc repro"):
        activations.load_layer(folder, 1)
    (folder / "meta.json").write_text("[]")
    with pytest.raises(BreakevenError, match="holds no mapping"):
        activations.load_meta(folder)
