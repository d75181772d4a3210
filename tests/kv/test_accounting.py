"""Bytes and bits of a cache against the published arithmetic (claim KV1) and known bits per element."""

from __future__ import annotations

import pytest
import torch

from breakeven.kv import accounting

LLAMA_3_8B = {"layers": 32, "kv_heads": 8, "head_dim": 128}


def test_llama_3_8b_takes_128_kib_a_token_in_fp16() -> None:
    assert accounting.kv_cache_bytes(**LLAMA_3_8B, seq=1, batch=1, bits_real=16) == 128 * 1024


@pytest.mark.parametrize(("bits", "gigabytes"), [(16, 17.18), (8, 8.59), (4, 4.29), (2, 2.15)])
def test_published_gigabytes_at_131072_tokens(bits: int, gigabytes: float) -> None:
    assert accounting.kv_cache_bytes(**LLAMA_3_8B, seq=131072, batch=1, bits_real=bits) / 1e9 == pytest.approx(
        gigabytes, abs=0.005
    )


@pytest.mark.parametrize(("tokens", "gigabytes"), [(4096, 0.54), (8192, 1.07), (32768, 4.29)])
def test_published_gigabytes_by_context(tokens: int, gigabytes: float) -> None:
    assert accounting.kv_cache_bytes(**LLAMA_3_8B, seq=tokens, batch=1, bits_real=16) / 1e9 == pytest.approx(
        gigabytes, abs=0.005
    )


def test_64_requests_at_32k_take_275_gb() -> None:
    assert accounting.kv_cache_bytes(**LLAMA_3_8B, seq=32768, batch=64, bits_real=16) / 1e9 == pytest.approx(
        275, abs=0.5
    )


def test_it_is_the_size_of_two_tensors_of_that_shape() -> None:
    tensors = [torch.zeros(3, 2, 5, 7, 8, dtype=torch.float16) for _ in "KV"]  # batch, layers, heads, tokens, d
    size = sum(t.untyped_storage().nbytes() for t in tensors)
    assert accounting.kv_cache_bytes(layers=2, kv_heads=5, head_dim=8, seq=7, batch=3, bits_real=16) == size


def test_what_scales_and_minima_add_to_the_published_two_bits() -> None:
    real = accounting.bits_per_element(131072, 128, axis="channel", group_size=32, code_bits=2, group_numbers=2)
    assert real == 3.0
    assert accounting.kv_cache_bytes(**LLAMA_3_8B, seq=131072, batch=1, bits_real=real) / 1e9 == pytest.approx(
        2.15 * 1.5, abs=0.01
    )


@pytest.mark.parametrize(("n_tokens", "groups"), [(1, 1), (31, 1), (32, 1), (33, 2), (64, 2), (65, 3), (77, 3)])
def test_a_short_last_group_of_tokens_is_paid_in_full(n_tokens: int, groups: int) -> None:
    bits = accounting.bits_per_element(n_tokens, 64, axis="channel", group_size=32, code_bits=4, group_numbers=2)
    assert bits * n_tokens == pytest.approx(4 * n_tokens + 32 * groups)


def test_a_whole_channel_shares_one_scale_however_long_it_is() -> None:
    one = [
        accounting.bits_per_element(n, 64, axis="channel", group_size=0, code_bits=3, group_numbers=1)
        for n in (77, 4096)
    ]
    assert one == pytest.approx([3 + 16 / 77, 3 + 16 / 4096])
