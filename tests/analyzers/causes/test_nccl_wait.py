"""Cause 4: exposed communication, what it costs, and who waits for whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.traces import TraceBuilder
from fixtures.views import COMPUTE, Machine, texts, view
from gpuprof.analyzers.causes import imbalance, nccl_wait
from gpuprof.analyzers.diagnose import Recorded, view_of
from gpuprof.analyzers.lateness import LateRank
from gpuprof.analyzers.recorded_window import RecordedWindow
from gpuprof.diagnosis import Finding, NotJudged, RuledOut
from gpuprof.readers.kineto import read_trace

GEMM = "ampere_sgemm_128x128_nn"


def job(
    *,
    rank: int = 0,
    world_size: int = 8,
    compute_us: float = 700.0,
    reduce_us: float = 300.0,
    beside_us: float = 0.0,
    host_us: float = 0.0,
    elements: int = 8_000_000,
    ddp: bool = True,
    drain: bool = False,
) -> Machine:
    """Steps of compute and one all-reduce; `beside_us` of the compute runs beside it."""
    machine = Machine(rank=rank, world_size=world_size)
    ranks = tuple(range(world_size))
    for number in range(6):
        with machine.step(number):
            if ddp:
                with machine.annotation("DistributedDataParallel.forward"):
                    machine.work(1)
            machine.work(host_us)
            machine.kernel(GEMM, compute_us - beside_us)
            machine.collective("allreduce", reduce_us, elements=elements, ranks=ranks, seq=number)
            if beside_us:
                machine.kernel(GEMM, beside_us)
            machine.wait(COMPUTE, 20)
            machine.kernel("multi_tensor_apply_kernel", 20)
            if drain:
                machine.synchronize()
    return machine


def ranks_with_late(
    *late: int, n_ranks: int = 4, late_us: float = 500.0, transfer_us: float = 100.0
) -> list[TraceBuilder]:
    """A job whose late ranks spend `late_us` more on their host before each step's all-reduce."""
    return [
        job(
            rank=rank,
            world_size=n_ranks,
            reduce_us=transfer_us if rank in late or not late else transfer_us + late_us,
            host_us=late_us if rank in late else 0.0,
            drain=True,
        ).trace
        for rank in range(n_ranks)
    ]


def test_exposed_communication_of_one_rank_is_found_with_size_and_bandwidth() -> None:
    """300 of 1,020 µs in an all-reduce of 32 MB over 8 ranks: 187 GB/s of bus bandwidth."""
    found = nccl_wait.judge(view(job().trace))
    assert isinstance(found, Finding)
    assert (found.cause, found.number, found.severity) == ("nccl-wait", 4, "critical")
    assert found.share == pytest.approx(300 / 1020, abs=0.02)
    assert found.gain is not None
    assert found.gain.reduction == pytest.approx(300 / 1020, abs=0.02)
    said = texts(found.evidence)
    assert "1 × all-reduce of 32 MB a step: 300 µs alone of 300 µs" in said
    assert "187 GB/s of bus bandwidth, 80 % of what its links give inside a node" in said
    assert "can't be told without the other ranks' traces" in said
    assert "bucket_cap_mb" in found.fixes[0].code
    assert "gradient_as_bucket_view" in found.fixes[0].code
    assert "NCCL_DEBUG=INFO" in texts(found.fixes)
    assert found.late_ranks == ()


def test_communication_beside_kernels_is_ruled_out() -> None:
    verdict = nccl_wait.judge(view(job(reduce_us=300, beside_us=290).trace))
    assert isinstance(verdict, RuledOut)
    assert "of all communication runs beside other work" in verdict.why


def test_a_host_that_sets_the_pace_gains_nothing_from_free_communication() -> None:
    """20 % exposed, gain 0: the wait only moves."""
    machine = Machine(world_size=2)
    for number in range(6):
        with machine.step(number):
            machine.work(1_000)
            machine.kernel(GEMM, 300)
            machine.work(300)
            machine.collective("allreduce", 300)
            machine.wait(COMPUTE, 20)
            machine.work(500)
            machine.kernel(GEMM, 100)
    verdict = nccl_wait.judge(view(machine.trace))
    assert isinstance(verdict, RuledOut)
    assert "sets the pace" in verdict.why
    assert "0.0 % shorter" in verdict.why


def test_without_collectives_there_is_nothing_to_wait_for() -> None:
    machine = Machine()
    for number in range(3):
        with machine.step(number):
            machine.kernel(GEMM, 300)
    verdict = nccl_wait.judge(view(machine.trace))
    assert isinstance(verdict, RuledOut)
    assert verdict.why == "no collective ran in the recorded steps"


def gloo(*, waits: bool) -> TraceBuilder:
    """A CPU rank whose all-reduce runs on a thread of its own; `waits`: the training thread is
    recorded inside it."""
    trace = TraceBuilder(gpu="", world_size=300, backend="gloo")
    for number in range(5):
        begun = 1000.0 * number
        trace.step(number, start_us=begun, dur_us=1000)
        trace.op("aten::mm", start_us=begun, dur_us=200)
        trace.annotation("gloo:all_reduce", start_us=begun + 200, dur_us=700, thread=2)
        if waits:
            trace.op("c10d::allreduce_", start_us=begun + 210, dur_us=690)
    return trace


def test_a_collective_on_another_thread_of_the_cpu_is_not_judged_from_one_rank() -> None:
    verdict = nccl_wait.judge(view(gloo(waits=False)))
    assert isinstance(verdict, NotJudged)
    assert "thread of its own" in verdict.missing
    assert verdict.command


def test_a_training_thread_inside_a_collective_waits() -> None:
    found = nccl_wait.judge(view(gloo(waits=True)))
    assert isinstance(found, Finding)
    assert found.share == pytest.approx(0.7, abs=0.02)


def test_all_to_alls_get_advice_that_fits_them() -> None:
    machine = Machine(world_size=4)
    for number in range(5):
        with machine.step(number), machine.annotation("DistributedDataParallel.forward"):
            machine.kernel(GEMM, 300)
            machine.collective(
                "all_to_allv",
                200,
                kernel="ncclDevKernel_SendRecv(ncclDevComm*, unsigned long)",
                ranks=(0, 1, 2, 3),
            )
            machine.wait(COMPUTE, 20)
            machine.kernel(GEMM, 300)
    found = nccl_wait.judge(view(machine.trace))
    assert isinstance(found, Finding)
    assert "all-to-all" in texts(found.evidence)
    assert "bucket_cap_mb" not in texts(found.fixes)


def test_a_late_rank_is_named_with_what_holds_it_up() -> None:
    """Rank 2 works 500 µs on its host; the others wait that long, and all would gain it."""
    found = nccl_wait.judge(view(*ranks_with_late(2)))
    assert isinstance(found, Finding)
    assert found.late_ranks == (2,)
    assert found.ranks == (0, 1, 2, 3)
    assert found.title.startswith("Rank 2 comes late")
    assert found.gain is not None
    assert found.gain.reduction == pytest.approx(500 / 1340, abs=0.03)
    assert "nobody waiting for rank 2" in found.gain.how
    said = texts(found.evidence)
    assert "Rank 2 was late in 6 of 6 steps" in said
    assert "idle after blocking calls, the others" in said
    assert "spends longer in host code, launches and blocking calls: 5" in said
    assert found.fixes[0].title == "Take from rank 2 what only it does on the host"


def test_advice_about_transfer_is_kept_for_transfers() -> None:
    """With 30 µs of transfer a step a faster link helps nobody."""
    found = nccl_wait.judge(view(*ranks_with_late(2, transfer_us=30)))
    assert isinstance(found, Finding)
    assert [fix.title for fix in found.fixes] == ["Take from rank 2 what only it does on the host"]


def test_two_late_ranks_are_both_named() -> None:
    found = nccl_wait.judge(view(*ranks_with_late(0, 3, n_ranks=6)))
    assert isinstance(found, Finding)
    assert found.late_ranks == (0, 3)
    assert "Ranks 0 and 3 come late" in found.title


def test_a_balanced_job_accuses_nobody() -> None:
    found = nccl_wait.judge(view(*ranks_with_late(transfer_us=300)))
    assert isinstance(found, Finding)
    assert found.late_ranks == ()
    assert "No rank is late" in texts(found.evidence)
    assert "0.0 % of the step is waiting for another rank" in texts(found.evidence)


def test_a_rank_that_chance_may_have_made_late_is_not_cleared() -> None:
    """Of three steps nobody knows. It is neither accused nor said to be in time."""
    run = view(*ranks_with_late(transfer_us=300))
    assert run.comparison is not None
    suspect = LateRank(2, 3, 3, "steps", share=0.05, robust_share=0.04, p_value=0.2)
    run = replace(run, comparison=replace(run.comparison, suspects=(suspect,)))
    found = nccl_wait.judge(run)
    assert isinstance(found, Finding)
    assert found.late_ranks == ()
    assert "Whether rank 2 is late can't be told: it was late in 3 of 3 steps" in texts(
        found.evidence
    )
    assert "No rank is late" not in texts(found.evidence)


def gloo_pair(*last: int) -> list[TraceBuilder]:
    """Two CPU ranks with 100 µs of transfer a step; last: who comes last in each, by 600 µs."""
    traces = []
    for rank in (0, 1):
        trace = TraceBuilder(gpu="", rank=rank, world_size=2, backend="gloo")
        for number, late in enumerate(last):
            begun = 1000.0 * number
            works = 890.0 if rank == late else 290.0
            trace.step(number, start_us=begun, dur_us=1000)
            trace.op("aten::mm", start_us=begun, dur_us=works)
            trace.annotation(
                "gloo:all_reduce", start_us=begun + works, dur_us=990 - works, thread=2
            )
            trace.op("c10d::allreduce_", start_us=begun + works, dur_us=990 - works)
        traces.append(trace)
    return traces


def test_faster_transfers_do_not_shorten_the_wait_for_a_rank() -> None:
    """Both ranks wait in turn, 30 % of the step on average: that is work that differs, and only the
    other 10 % are the network's. So unequal work is named first."""
    run = view(*gloo_pair(0, 1, 0, 1, 1, 0))
    found = nccl_wait.judge(run)
    assert isinstance(found, Finding)
    assert found.late_ranks == ()
    assert found.share == pytest.approx(0.4, abs=0.02)
    assert found.gain is not None
    assert found.gain.reduction == pytest.approx(0.1, abs=0.02)
    unequal = imbalance.judge(run)
    assert isinstance(unequal, Finding)
    assert unequal.gain is not None
    assert unequal.gain.reduction > found.gain.reduction


@pytest.mark.parametrize(("ready_ms", "is_judged"), [(0.03, True), (0.2, True), (0.5, False)])
def test_waiting_that_other_processes_may_have_made_is_not_judged(
    ready_ms: float, is_judged: bool
) -> None:
    """Ranks that wait in turn on a CPU that others use for half of the time: nobody can tell whose
    doing that is. It can where others had less than what is lost, or next to nothing."""
    run = view(*gloo_pair(0, 1, 0, 1, 1, 0))
    told = RecordedWindow(0, 1.0, None, 0.5, ready_ms, None, windows_ms=0.0, run_ms=0.0)
    for cause in (nccl_wait, imbalance):
        verdict = cause.judge(replace(run, told={0: told}))
        assert isinstance(verdict, Finding if is_judged else NotJudged), verdict


def test_a_late_rank_is_named_on_a_busy_machine_too() -> None:
    """Other processes meet all ranks alike."""
    run = view(*gloo_pair(*(1,) * 8))
    told = RecordedWindow(0, 1.0, None, 0.5, 0.7, None, windows_ms=0.0, run_ms=0.0)
    found = nccl_wait.judge(replace(run, told={0: told}))
    assert isinstance(found, Finding)
    assert found.late_ranks == (1,)


def test_ranks_that_are_missing_are_said_to_be() -> None:
    found = nccl_wait.judge(view(*ranks_with_late(2)[1:]))
    assert isinstance(found, Finding)
    assert "Over 3 of 4 ranks" in texts(found.evidence)
    assert "may be late as well" in texts(found.evidence)


def test_a_finding_is_data_that_json_can_hold() -> None:
    """No NumPy number may slip into the diagnosis."""
    import msgspec

    for traces in (ranks_with_late(2), ranks_with_late(2)[:1]):
        msgspec.json.encode(nccl_wait.judge(view(*traces)))


CASES = Path(__file__).parents[4] / "shared" / "cases" / "traces"


@pytest.mark.skipif(not CASES.exists(), reason="the labelled traces are not here")
@pytest.mark.parametrize(
    ("case", "late"), [("dlrm-8-ranks", (7,)), ("megatron-tp8", (0, 6)), ("a100-exposed-nccl", ())]
)
def test_labelled_traces(case: str, late: tuple[int, ...]) -> None:
    traces = tuple(read_trace(path) for path in sorted((CASES / case).glob("*.json.gz")))
    found = nccl_wait.judge(view_of(Recorded(traces=traces, attribution={}))[0])
    assert isinstance(found, Finding)
    assert found.late_ranks == late


@pytest.mark.skipif(not CASES.exists(), reason="the labelled traces are not here")
@pytest.mark.parametrize(
    "case", ["cpu-only-rank", "rank-missing", "mi250-toy", "v100-host-and-nccl"]
)
def test_labelled_traces_without_it(case: str) -> None:
    trace = read_trace(CASES / case / "trace.json.gz")
    verdict = nccl_wait.judge(view_of(Recorded(traces=(trace,), attribution={}))[0])
    assert not isinstance(verdict, Finding)
