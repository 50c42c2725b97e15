"""Samples: counters, joins and the table."""

from __future__ import annotations

import math

import numpy as np

from fixtures.samples import samples
from gpuprof.sample_format import Status
from gpuprof.samples import RankFacts, Samples, series

NAN = float("nan")


def test_a_counter_that_was_reset_loses_only_that_interval() -> None:
    one = samples({("energy_j", "gpu:0"): [10, 20, 5, 15, NAN, 35]}, step_s=1).series[
        "energy_j", "gpu:0"
    ]
    _, rate = one.rate_per_s()
    assert rate.tolist() == [10, 10, 10]  # the last one over two seconds
    assert one.growth() == 10 + 10 + 20


def test_one_read_has_no_growth() -> None:
    one = samples({("energy_j", "gpu:0"): [10]}).series["energy_j", "gpu:0"]
    assert math.isnan(one.growth())
    assert len(one.rate_per_s()[0]) == 0


def test_nan_without_a_status_is_an_error_and_order_is_by_time() -> None:
    made = series("x", "host", np.array([2, 1], dtype=np.int64), np.array([NAN, 1.0]))
    assert made.time_ns.tolist() == [1, 2]
    assert made.status.tolist() == [Status.OK, Status.ERROR]


def test_scopes_are_in_natural_order() -> None:
    recorded = samples({("util_frac", f"gpu:{i}"): [1] for i in (10, 2, 0)})
    assert recorded.scopes("gpu") == ["gpu:0", "gpu:2", "gpu:10"]


def test_a_rank_is_joined_to_its_own_gpu_by_uuid() -> None:
    recorded = samples(
        {("util_frac", f"gpu:{i}"): [1] for i in range(2)},
        ranks=[RankFacts(1, 0, ("GPU-1", "GPU-0")), RankFacts(2, 1), RankFacts(3, 2, ("GPU-9",))],
    )
    assert recorded.gpu_of_rank(0) == "gpu:1"
    assert recorded.gpu_of_rank(1) is None
    assert recorded.gpu_of_rank(2) is None


def test_the_table_is_long() -> None:
    recorded = samples({("util_frac", "gpu:0"): [1, NAN], ("power_w", "gpu:0"): [3, 4]})
    table = recorded.frame("util_frac")
    assert list(table.columns) == ["scope", "time_ns", "value", "status"]
    assert len(table) == 2
    assert Samples(node="", source="").frame("x").empty
    assert Samples(node="", source="").span_ns is None
