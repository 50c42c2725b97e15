"""Facts: what the run already does, so that it is not advised again."""

from __future__ import annotations

import pytest

from fixtures.runs import WORKERS_LOADER, Job, training
from fixtures.traces import TraceBuilder
from gpuprof.analyzers.account import account_rank
from gpuprof.analyzers.facts import RunFacts, find_facts
from gpuprof.analyzers.summary import device_roofline


def facts_of(job: Job | TraceBuilder, cores: int | None = None) -> RunFacts:
    account = account_rank((job.trace if isinstance(job, Job) else job).trace(), 0)
    return find_facts(account, device_roofline(account, account.main), cores)


def with_op(name: str) -> Job:
    job = training(3)
    with job.op(name):
        job.work(5)
    return job


def test_a_plain_run_does_nothing_special() -> None:
    facts = facts_of(training(3))
    assert facts.loader_workers is None
    assert facts.pinned_input is None
    assert not facts.compiled
    assert not facts.graphs
    assert facts.optimizer == ""
    assert facts.optimizer_fused is None
    assert not (facts.ddp or facts.fsdp or facts.recomputes or facts.backward or facts.rocm)
    assert facts.peak_bytes is None
    assert facts.cores is None


def test_a_loader_in_the_training_process_has_no_workers() -> None:
    assert facts_of(training(3, load_us=10)).loader_workers == 0


def test_a_loader_with_workers_has_some() -> None:
    assert facts_of(training(3, load_us=10, loader=WORKERS_LOADER)).loader_workers == 1


@pytest.mark.parametrize(
    ("kind", "pinned"),
    [
        ("HtoD (Pinned -> Device)", True),
        ("HtoD (Pageable -> Device)", False),
        ("DtoH (Device -> Pageable)", None),
        ("HtoD", None),
    ],
)
def test_pinned_memory_is_read_from_the_copies(kind: str, pinned: bool | None) -> None:
    job = training(3)
    job.copy(kind, 10**6, 10, blocking=False)
    assert facts_of(job).pinned_input is pinned


@pytest.mark.parametrize(
    ("op", "fused"),
    [("aten::_fused_adamw_", True), ("aten::_foreach_add_", False), ("aten::add_", None)],
)
def test_a_fused_optimizer_is_known_by_its_operator(op: str, fused: bool | None) -> None:
    job = with_op(op)
    job.optimizer(10, "AdamW")
    facts = facts_of(job)
    assert facts.optimizer == "AdamW"
    assert facts.optimizer_fused is fused


def test_most_kernels_from_graphs_is_a_run_with_graphs() -> None:
    job = Job()
    for number in range(3):
        with job.step(number):
            job.graph((10, 10, 10))
            job.kernel("k", 10)
    facts = facts_of(job)
    assert facts.graph_frac == pytest.approx(0.75)
    assert facts.graphs


def test_triton_kernels_mean_a_compiled_run() -> None:
    job = training(4, kernel="triton_poi_fused_add_relu_0")
    with job.op("Torch-Compiled Region: 0/0"):
        job.work(5)
    assert facts_of(job).compiled


@pytest.mark.parametrize(
    ("op", "field"),
    [
        ("DistributedDataParallel.forward", "ddp"),
        ("FSDP::all_gather", "fsdp"),
        ("FullyShardedDataParallel.forward", "fsdp"),
        ("FSDP::all_gather", "fully_shard"),
        ("aten::_amp_foreach_non_finite_check_and_unscale_", "scaled"),
        ("CheckpointFunction", "recomputes"),
        ("autograd::engine::evaluate_function: MmBackward0", "backward"),
    ],
)
def test_what_the_run_is_made_of(op: str, field: str) -> None:
    assert getattr(facts_of(with_op(op)), field) is True


def test_peak_memory_is_the_most_that_was_allocated() -> None:
    job = training(3)
    for at, allocated in ((1, 10**9), (2, 7 * 10**9), (3, 2 * 10**9)):
        job.trace.memory(
            time_us=at, size_bytes=1, allocated_bytes=allocated, reserved_bytes=9 * 10**9
        )
    job.trace.memory(time_us=5, size_bytes=1, device=-1, allocated_bytes=99 * 10**9)
    facts = facts_of(job)
    assert facts.peak_bytes == 7 * 10**9
    assert facts.device_bytes == job.trace.memory_bytes


def test_the_type_of_most_matrix_work() -> None:
    names = {"ampere_fp16_s16816gemm_fp16_128x128_nn": 900.0, "ampere_sgemm_128x128_nn": 100.0}
    job = Job()
    for number in range(3):
        with job.step(number):
            for name, us in names.items():
                job.kernel(name, us)
    assert facts_of(job).dtype in ("fp16", "float16", "half")


def test_cores_are_what_the_caller_knows() -> None:
    assert facts_of(training(3), cores=6).cores == 6
