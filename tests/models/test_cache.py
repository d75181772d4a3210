"""The KV cache: append, roll back, refuse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from breakeven.errors import BreakevenError
from breakeven.models.cache import KVCache

LAYERS, HEADS, CAPACITY, HEAD_DIM = 3, 2, 20, 4


def make() -> KVCache:
    return KVCache(LAYERS, (HEADS, CAPACITY, HEAD_DIM), torch.float64, torch.device("cpu"))


def entries(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = torch.randn(
        2, 1, HEADS, n, HEAD_DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return keys, values


# Each step appends n tokens to one layer, or crops all layers to n.
STEPS = st.lists(st.tuples(st.sampled_from(["append", "crop"]), st.integers(0, LAYERS - 1), st.integers(0, 7)))


@given(STEPS)
def test_equals_lists_of_tokens_under_any_appends_and_crops(steps: list[tuple[str, int, int]]) -> None:
    cache = make()
    keys = [torch.zeros(1, HEADS, 0, HEAD_DIM, dtype=torch.float64)] * LAYERS
    values = list(keys)
    for seed, (kind, layer, n) in enumerate(steps):
        if kind == "crop":
            cache.crop(n)
            keys, values = [x[:, :, :n] for x in keys], [x[:, :, :n] for x in values]
            continue
        new_keys, new_values = entries(n, seed)
        if keys[layer].shape[2] + n > CAPACITY:
            with pytest.raises(BreakevenError, match=f"holds {CAPACITY} tokens"):
                cache.update(new_keys, new_values, layer)
            continue
        keys[layer], values[layer] = (
            torch.cat([keys[layer], new_keys], dim=2),
            torch.cat([values[layer], new_values], dim=2),
        )
        returned = cache.update(new_keys, new_values, layer)
        torch.testing.assert_close(returned, (keys[layer], values[layer]), rtol=0, atol=0)
    for layer in range(LAYERS):
        assert cache.lengths[layer] == keys[layer].shape[2]
        torch.testing.assert_close(cache.layer(layer), (keys[layer], values[layer]), rtol=0, atol=0)
    assert cache.length == min(cache.lengths)


def test_overflow_is_refused_and_loses_nothing() -> None:
    cache = make()
    cache.update(*entries(CAPACITY, 0), 0)
    before = cache.layer(0)[0].clone()
    with pytest.raises(BreakevenError, match=r"21 are needed.*max_context_tokens"):
        cache.update(*entries(1, 1), 0)
    assert cache.lengths == [CAPACITY, 0, 0]
    assert torch.equal(cache.layer(0)[0], before)


def test_crop_never_lengthens_a_short_layer() -> None:
    cache = make()
    cache.update(*entries(9, 0), 0)
    cache.update(*entries(4, 1), 1)
    cache.crop(6)
    assert cache.lengths == [6, 4, 0]


def test_negative_crop_is_refused_since_it_means_from_the_end_elsewhere_45745() -> None:
    with pytest.raises(ValueError, match="-1"):
        make().crop(-1)


def test_crop_copies_nothing() -> None:
    cache = make()
    cache.update(*entries(9, 0), 0)
    pointer = cache.layer(0)[0].data_ptr()
    cache.crop(3)
    assert cache.layer(0)[0].data_ptr() == pointer


def test_bytes_are_those_allocated_whatever_the_length() -> None:
    cache = make()
    assert cache.nbytes == 2 * LAYERS * HEADS * CAPACITY * HEAD_DIM * 8
    cache.update(*entries(9, 0), 0)
    cache.crop(0)
    assert cache.nbytes == 2 * LAYERS * HEADS * CAPACITY * HEAD_DIM * 8
