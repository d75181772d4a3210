"""Channel statistics against numpy, one channel at a time; an outlier channel is found where it was put."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from breakeven.evidence.claims.cache import outlier_shares
from breakeven.kv.channels import WHICH, ChannelRow, channel_statistics


def tensors(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {which: (torch.randn(3, 2, 7, 4, generator=generator) + 0.5).to(dtype) for which in WHICH}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_statistic_of_every_channel_is_numpys(dtype: torch.dtype) -> None:
    given = tensors(dtype)
    table = channel_statistics(5, given)
    assert set(table.columns) == set(ChannelRow.__annotations__)
    assert len(table) == len(table.drop_duplicates(["kv_head", "channel", "which"])) == 3 * 2 * 4
    assert (table["layer"] == 5).all()
    for row in table.to_dict("records"):
        values = given[row["which"]].double().numpy()[:, row["kv_head"], :, row["channel"]].ravel()
        assert len(values) == 3 * 7
        assert row["mean_abs"] == pytest.approx(np.abs(values).mean())
        assert row["max_abs"] == pytest.approx(np.abs(values).max())
        assert row["std"] == pytest.approx(values.std())
        assert row["mean"] == pytest.approx(values.mean())


def test_the_mean_magnitude_is_not_the_magnitude_of_the_mean() -> None:
    given = tensors()
    given["k_post"][..., 2] = torch.tensor([4.0, -4.0, 4.0, -4.0, 4.0, -4.0, 0.0])
    table = channel_statistics(0, given).set_index(["which", "kv_head", "channel"])
    assert table.loc[("k_post", 0, 2), "mean_abs"] == pytest.approx(24 / 7)
    assert table.loc[("k_post", 0, 2), "mean"] == pytest.approx(0.0)


def test_outlier_channels_are_seen_in_keys_and_not_in_values() -> None:
    given = {which: torch.randn(2, 3, 50, 16, generator=torch.Generator().manual_seed(1)) for which in WHICH}
    given["k_post"][:, :2, :, 9] *= 20
    given["k_post"][:, :, 3] *= 20  # an outlier token makes no outlier channel
    table = channel_statistics(0, given)
    assert outlier_shares(table) == pytest.approx({"k_pre": 0.0, "k_post": 2 / 3, "v": 0.0})
    keys = table[(table["which"] == "k_post") & (table["kv_head"] < 2)]
    assert set(keys.sort_values("mean_abs").groupby("kv_head")["channel"].last()) == {9}
