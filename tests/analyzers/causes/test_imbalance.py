"""Cause 7: unequal work between ranks, a pipeline's bubble, and what is neither."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from fixtures.traces import TraceBuilder
from fixtures.views import COMMUNICATION, COMPUTE, Machine, texts, view
from gpuprof.analyzers.causes import imbalance, nccl_wait
from gpuprof.analyzers.diagnose import Recorded, view_of
from gpuprof.analyzers.imbalance import bubble_frac
from gpuprof.diagnosis import Finding, NotJudged, RuledOut
from gpuprof.readers.kineto import read_trace

CASES = Path(__file__).parents[4] / "shared" / "cases" / "traces"
GEMM = "ampere_sgemm_128x128_nn"
P2P = "ncclDevKernel_SendRecv(ncclDevComm*, unsigned long)"


def job(
    compute_us: Sequence[Sequence[float]],
    *,
    host_us: Sequence[float] = (),
    blocks: Sequence[int] = (),
) -> list[TraceBuilder]:
    """Ranks that compute and all-reduce; compute_us: (n_steps, n_ranks). Nobody leaves the
    all-reduce before all have come."""
    n_ranks = len(compute_us[0])
    traces = []
    for rank in range(n_ranks):
        machine = Machine(rank=rank, world_size=n_ranks)
        for number, times in enumerate(compute_us):
            hosts = list(host_us) or [0.0] * n_ranks
            arrivals = [host + own for host, own in zip(hosts, times, strict=True)]
            with machine.step(number):
                machine.work(hosts[rank])
                machine.kernel(GEMM, times[rank], grid=(blocks[rank] if blocks else 108, 1, 1))
                machine.collective(
                    "allreduce",
                    50 + max(arrivals) - arrivals[rank],
                    ranks=tuple(range(n_ranks)),
                    seq=number,
                )
                machine.wait(COMPUTE, COMMUNICATION)
                machine.synchronize()
        traces.append(machine.trace)
    return traces


def test_without_steps_the_title_speaks_of_the_recording() -> None:
    traces = []
    for rank, own in enumerate((500.0, 1_500.0)):
        machine = Machine(rank=rank, world_size=2)
        machine.kernel(GEMM, own, grid=(108, 1, 1))
        machine.collective("allreduce", 50 + 1_500 - own, ranks=(0, 1), seq=0)
        machine.wait(COMPUTE, COMMUNICATION)
        machine.synchronize()
        traces.append(machine.trace)
    run = view(*traces)
    assert not run.has_steps
    found = imbalance.judge(run)
    assert isinstance(found, Finding)
    assert found.title.endswith("of the recording is lost")


def test_persistent_kernels_do_not_hide_that_inputs_are_larger() -> None:
    """The GEMM has one block a multiprocessor on all ranks; only the small kernel's grid grows."""
    traces = []
    for rank in range(4):
        more = 1.5 if rank == 1 else 1.0
        machine = Machine(rank=rank, world_size=4)
        for number in range(6):
            with machine.step(number):
                machine.kernel(GEMM, 500 * more, grid=(132, 1, 1))
                machine.kernel("layer_norm", 60 * more, grid=(int(20 * more), 1, 1))
                late = 560 * 1.5 - 560 * more
                machine.collective("allreduce", 50 + late, ranks=(0, 1, 2, 3), seq=number)
                machine.wait(COMPUTE, COMMUNICATION)
                machine.synchronize()
        traces.append(machine.trace)
    found = imbalance.judge(view(*traces))
    assert isinstance(found, Finding)
    said = texts(found.evidence)
    assert "the device is slower" not in said
    assert "its inputs are larger" in said
    assert found.fixes[0].title == "Deal samples out by their cost, not by their count"


def test_a_rank_with_more_work_is_found_with_what_it_costs() -> None:
    """900 µs against three times 500: the mean is 600, so 300 of some 970 µs are lost."""
    traces = job([[500, 500, 900, 500]] * 6, blocks=[500, 500, 900, 500])
    found = imbalance.judge(view(*traces))
    assert isinstance(found, Finding)
    assert (found.cause, found.number, found.severity) == ("imbalance", 7, "critical")
    assert found.share == pytest.approx(300 / 970, abs=0.02)
    assert found.gain is not None
    assert found.gain.reduction == pytest.approx(300 / 970, abs=0.02)
    assert found.title.startswith("Rank 2 computes longer")
    assert found.late_ranks == (2,)
    assert "50 % more than the mean" in texts(found.evidence).replace("\u00a0", " ")
    assert "Deal samples out" in found.fixes[0].title
    msgspec.json.encode(found)


def test_waiting_for_a_rank_with_more_work_is_priced_as_work_evened_out() -> None:
    """The others wait 400 µs for it, but its surplus has to be done by somebody: 300 are saved."""
    traces = job([[500, 500, 900, 500]] * 6, blocks=[500, 500, 900, 500])
    found = nccl_wait.judge(view(*traces))
    assert isinstance(found, Finding)
    assert found.late_ranks == (2,)
    assert found.gain is not None
    assert found.gain.reduction == pytest.approx(300 / 970, abs=0.02)
    assert "evened out" in found.gain.how


def test_work_that_moves_between_ranks_is_lost_as_well() -> None:
    """Experts: another rank is heavy in each step, so that the means are equal."""
    steps = [[900 if rank == step % 4 else 500 for rank in range(4)] for step in range(8)]
    found = imbalance.judge(view(*job(steps)))
    assert isinstance(found, Finding)
    assert found.share == pytest.approx(300 / 970, abs=0.03)
    assert "another rank from step to step" in texts(found.evidence)


def test_equal_work_on_a_slower_device_is_said_to_be_that() -> None:
    traces = job([[500, 500, 900, 500]] * 6, blocks=[500] * 4)
    found = imbalance.judge(view(*traces))
    assert isinstance(found, Finding)
    assert "the device is slower" in texts(found.evidence)
    assert found.fixes[0].title == "Look at the device of rank 2"


def test_late_hosts_with_equal_compute_are_no_imbalance() -> None:
    verdict = imbalance.judge(view(*job([[500] * 4] * 6, host_us=[0, 0, 400, 0])))
    assert isinstance(verdict, RuledOut)
    assert "compute about equally long" in verdict.why
    assert "Rank 2 comes late for other reasons" in verdict.why


def pipeline(*, stages: int = 4, micro_batches: int = 4) -> list[TraceBuilder]:
    """Stages of equal work that fill, work and drain: each waits in a receive before its first
    micro-batch and in another one at the end of the step."""
    traces = []
    for rank in range(stages):
        machine = Machine(rank=rank, world_size=stages)
        ranks = tuple(range(stages))
        for number in range(5):
            with machine.step(number):
                if rank:
                    machine.collective("recv", 100.0 * rank, kernel=P2P, ranks=ranks)
                    machine.wait(COMPUTE, COMMUNICATION)
                for _ in range(micro_batches):
                    machine.kernel(GEMM, 100)
                    machine.trace.collective("send", start_us=machine.now, dur_us=1, ranks=ranks)
                if rank < stages - 1:
                    machine.collective("recv", 100.0 * (stages - 1 - rank), kernel=P2P, ranks=ranks)
                    machine.wait(COMPUTE, COMMUNICATION)
                machine.synchronize()
        traces.append(machine.trace)
    return traces


def test_a_bubble_is_measured_against_the_ideal_one() -> None:
    """4 stages, 4 micro-batches: (4 − 1) / (4 + 4 − 1) = 43 % of the step."""
    found = imbalance.judge(view(*pipeline()))
    assert isinstance(found, Finding)
    assert found.share == pytest.approx(3 / 7, abs=0.02)
    assert found.gain is None
    said = texts(found.evidence).replace("\u00a0", " ")
    assert "With 4 micro-batches (4 − 1) / (4 + 4 − 1) = 43 %" in said
    assert "uneven stages" not in said
    assert "57 micro-batches" in texts(found.fixes)
    assert "Interleave" in texts(found.fixes)
    msgspec.json.encode(found)


def early_receives() -> list[TraceBuilder]:
    """Two stages that take turns in computing, 200 µs a step, with hosts far ahead: a receive is
    under way while the step before is still computed, and the first one so before the window."""
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank=rank, world_size=2)
        begun = 1_000.0 + 100 * rank
        trace.launch_kernel(GEMM, start_us=begun - 100, dur_us=100)
        for number in range(4):
            issued, due = 50.0 * number, begun + 200 * number
            trace.step(number, start_us=issued, dur_us=50)
            trace.launch_collective(
                "recv", launch_us=issued + 5, start_us=due - 60, dur_us=160, kernel=P2P
            )
            trace.launch_kernel(GEMM, launch_us=issued + 20, start_us=due + 100, dur_us=100)
        traces.append(trace)
    return traces


def test_a_bubble_is_whole_where_receives_begin_before_their_step() -> None:
    """Half of each step is one bubble; what of it began before the first step is no other
    communication that a faster network would shorten."""
    run = view(*early_receives())
    found = imbalance.judge(run)
    assert isinstance(found, Finding)
    assert found.share == pytest.approx(0.5, abs=0.01)
    assert isinstance(nccl_wait.judge(run), RuledOut)


def test_more_micro_batches_make_the_bubble_smaller() -> None:
    assert bubble_frac(4, 4) == pytest.approx(3 / 7)
    assert bubble_frac(4, 57) == pytest.approx(0.05)
    assert bubble_frac(1, 8) == 0.0


def test_one_rank_of_many_is_not_judged() -> None:
    verdict = imbalance.judge(view(job([[500, 500]] * 4)[0]))
    assert isinstance(verdict, NotJudged)
    assert "one rank of 2" in verdict.missing
    assert verdict.command


def test_one_rank_alone_has_nothing_to_compare() -> None:
    machine = Machine()
    for number in range(3):
        with machine.step(number):
            machine.kernel(GEMM, 500)
    assert isinstance(imbalance.judge(view(machine.trace)), RuledOut)


def test_ranks_that_do_not_communicate_do_not_wait() -> None:
    traces = []
    for rank in range(2):
        machine = Machine(rank=rank, world_size=2)
        for number in range(3):
            with machine.step(number):
                machine.kernel(GEMM, 500 + 500 * rank)
        traces.append(machine.trace)
    verdict = imbalance.judge(view(*traces))
    assert isinstance(verdict, RuledOut)
    assert "do not communicate" in verdict.why


def test_unequal_devices_of_one_process_are_found() -> None:
    trace = TraceBuilder(world_size=1)
    for number in range(5):
        begun = 1000.0 * number
        trace.step(number, start_us=begun, dur_us=1000)
        for device, us in ((0, 900), (1, 300)):
            trace.launch_kernel(
                GEMM, launch_us=begun + 10 * device, start_us=begun + 30, dur_us=us, device=device
            )
    found = imbalance.judge(view(trace))
    assert isinstance(found, Finding)
    assert found.share == pytest.approx(0.3, abs=0.02)


@pytest.mark.skipif(not CASES.exists(), reason="the labelled traces are not here")
@pytest.mark.parametrize("case", ["dlrm-8-ranks", "megatron-tp8"])
def test_labelled_jobs_have_equal_work(case: str) -> None:
    traces = tuple(read_trace(path) for path in sorted((CASES / case).glob("*.json.gz")))
    verdict = imbalance.judge(view_of(Recorded(traces=traces, attribution={}))[0])
    assert isinstance(verdict, RuledOut)
    assert "late for other reasons" in verdict.why
