"""Ranks that step together start together."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof.attach.together import common_start


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 1000), min_size=2, max_size=8),
    st.integers(5, 5000),
    st.data(),
)
def test_every_rank_starts_at_the_same_step_of_the_job(
    entered: list[int], step_ms: int, data: st.DataObject
) -> None:
    """Counts differ by when the agent came in, ends of steps by a fraction of a step."""
    job_step = max(entered) + 20
    beats = {}
    for rank, first in enumerate(entered):
        last = job_step - data.draw(st.integers(0, 1))  # one may be a step behind
        jitter = [data.draw(st.integers(0, step_ms * 200_000)) for _ in range(12)]
        ends = [(last - 11 + i) * step_ms * 1_000_000 + jitter[i] for i in range(12)]
        beats[rank] = (last - first, ends)
    starts = common_start(beats)
    assert starts is not None
    assert len({starts[rank] + first for rank, first in enumerate(entered)}) == 1
    assert all(starts[rank] > beats[rank][0] for rank in beats)


def test_too_few_steps_say_nothing() -> None:
    """Two ends do not tell a length from a jitter."""
    assert common_start({1: (2, [1, 2]), 2: (9, [1, 2, 3])}) is None
