"""Advice about collectives fits what the run is made of."""

from __future__ import annotations

import pytest

from fixtures.runs import training, view
from fixtures.views import texts
from gpuprof.analyzers.communication_fixes import communication_fixes
from gpuprof.analyzers.exposed import exposed_collectives


@pytest.mark.parametrize(
    ("mark", "said", "unsaid"),
    [
        ("FSDP::pre_forward", "set_modules_to_forward_prefetch", "FullyShardedDataParallel("),
        ("FullyShardedDataParallel.forward", "backward_prefetch=", "set_modules_to"),
        ("DistributedDataParallel.forward", "bucket_cap_mb", "prefetch"),
    ],
)
def test_each_wrapper_is_told_its_own_knobs(mark: str, said: str, unsaid: str) -> None:
    """fully_shard takes none of the arguments that the older wrapper takes."""
    job = training(4, collective_us=400)
    with job.op(mark):
        job.work(5)
    run = view(job)
    advice = texts(communication_fixes(run.facts, exposed_collectives(run.first)))
    assert said in advice
    assert unsaid not in advice
