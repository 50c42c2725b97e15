"""Steps: whose mark counts, how long a step is, and which ones are left out."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.runs import Job, cpu_training, training
from fixtures.traces import TraceBuilder
from gpuprof.analyzers.account import account_rank
from gpuprof.analyzers.launches import find_launches
from gpuprof.analyzers.steps import Steps, find_marks, steps_on_device, steps_on_host


def steps_of(job: Job | TraceBuilder) -> Steps:
    """The steps of the only device."""
    trace = (job.trace if isinstance(job, Job) else job).trace()
    launches = find_launches(trace)
    events = np.argsort(launches.start_ns, kind="stable")
    whole = int(launches.start_ns.min()), int(launches.end_ns.max())
    return steps_on_device(find_marks(trace), launches, events, whole)


def lengths_us(steps: Steps) -> list[float]:
    return [ns / 1e3 for ns in (steps.end_ns - steps.start_ns).tolist()]


# Sources


def test_profiler_marks_are_steps() -> None:
    steps = steps_of(training(4))
    assert steps.source == "ProfilerStep"
    assert steps.labels == tuple(f"ProfilerStep#{i}" for i in range(4))


def test_session_marks_are_steps() -> None:
    job = Job()
    for number in range(3):
        with job.annotation(f"gpuprof.step#{number}"):
            job.kernel("k", 100)
    assert steps_of(job).source == "session"


def test_optimizer_steps_mark_the_ends_of_steps() -> None:
    """Five optimizer steps bound four whole steps; what lies outside is no whole step."""
    job = Job()
    for _ in range(5):
        job.kernel("k", 1_000)
        job.work(200)
        job.optimizer(50)
        job.synchronize()
    steps = steps_of(job)
    assert steps.source == "inferred"
    assert len(steps) == 4
    assert steps.labels[0] == "step 1"
    assert np.median(steps.length_ns) == pytest.approx(1_010_000, rel=0.03)


def test_two_optimizers_a_step_are_one_step() -> None:
    """A GAN steps two optimizers an iteration: one of them bounds the step."""
    job = Job()
    for _ in range(6):
        for name in ("Adam", "SGD"):
            job.kernel("k", 500)
            job.optimizer(20, name)
        job.synchronize()
    steps = steps_of(job)
    assert len(steps) == 5
    assert np.median(steps.length_ns) == pytest.approx(1_010_000, rel=0.03)


def test_a_loader_marks_the_starts_of_steps() -> None:
    job = training(5, load_us=300, marks=False, settled=True)
    steps = steps_of(job)
    assert steps.source == "inferred"
    assert len(steps) == 4
    assert np.median(steps.length_ns) == pytest.approx(1_308_000, rel=0.01)


def test_two_markers_are_not_enough_for_a_period() -> None:
    job = Job()
    for _ in range(2):
        job.kernel("k", 500)
        job.optimizer(20)
    assert steps_of(job).source == "none"


def test_an_annotation_that_fills_the_recording_is_a_step() -> None:
    job = Job()
    for number in range(4):
        with job.annotation(f"iteration {number}"):
            job.kernel("k", 400)
            job.synchronize()
    steps = steps_of(job)
    assert steps.source == "inferred"
    assert len(steps) == 4


def test_an_annotation_of_a_small_part_is_no_step() -> None:
    """`forward` covers a tenth of the loop: its repetition says nothing of the step."""
    job = Job()
    for _ in range(5):
        with job.annotation("forward"):
            job.kernel("k", 10)
        job.work(1_000)
    assert steps_of(job).source == "none"


def test_without_any_mark_the_recording_is_one_stretch() -> None:
    job = training(4, marks=False)
    steps = steps_of(job)
    assert steps.source == "none"
    assert len(steps) == 1
    assert steps.labels == ("whole recording",)
    assert int(steps.length_ns[0]) == 4_000_000


def test_the_thread_with_most_marks_is_the_training_thread() -> None:
    job = training(5)
    job.trace.step(99, start_us=0, dur_us=50, thread=3)
    assert len(steps_of(job)) == 5


# Lengths


def test_a_host_that_runs_ahead_does_not_shorten_the_step() -> None:
    """The host issues a step in a third of the time that the device takes for it (real case:
    7.5 ms against 25 ms): the step is the device's."""
    trace = TraceBuilder()
    for i in range(6):
        trace.step(i, start_us=1_000 * i, dur_us=1_000)
        trace.launch_kernel("k", launch_us=1_000 * i + 10, start_us=3_000 * i + 20, dur_us=3_000)
    steps = steps_of(trace)
    assert lengths_us(steps)[1:] == [3_000.0] * 5
    assert steps.host_end_ns[0] - steps.host_start_ns[0] == 1_000_000


def test_each_step_begins_where_the_last_one_ended() -> None:
    steps = steps_of(training(6, kernels=(100, 200), work_us=70, items=1))
    assert steps.start_ns[1:].tolist() == steps.end_ns[:-1].tolist()
    assert len(set(lengths_us(steps)[1:-1])) == 1


def test_backlog_from_before_the_window_is_not_the_first_steps() -> None:
    """5 ms of work launched before the recording runs into it: the first step starts after it."""
    job = Job()
    job.trace.launch_kernel("backlog", start_us=0, dur_us=5_000)
    job.free[7] = 5_000
    training(5, job=job)
    steps = steps_of(job)
    assert lengths_us(steps)[0] == 1_000.0
    assert steps.keep.all()


def test_backlog_that_a_receive_has_overtaken_is_not_the_first_steps_either() -> None:
    """The first recorded receive begins on its own stream while older work still runs."""
    trace = TraceBuilder()
    trace.launch_kernel("old", start_us=0, dur_us=500)
    trace.launch_kernel("old", start_us=500, dur_us=500)
    for number in range(4):
        issued, due = 50 * number, 1_000 + 200 * number
        trace.step(number, start_us=issued, dur_us=50)
        trace.launch_kernel("recv", launch_us=issued + 5, start_us=due - 60, dur_us=160, stream=20)
        trace.launch_kernel("k", launch_us=issued + 20, start_us=due + 100, dur_us=100)
    assert lengths_us(steps_of(trace)) == [200.0] * 4


def test_a_kernel_that_ends_after_its_span_belongs_to_the_step_that_launched_it() -> None:
    trace = TraceBuilder()
    for i in range(4):
        trace.step(i, start_us=100 * i, dur_us=100)
        trace.launch_kernel("k", launch_us=100 * i + 90, start_us=100 * i + 98, dur_us=50)
    assert steps_of(trace).end_ns[0] == trace.ns(148)


def test_a_step_without_device_work_ends_with_the_host() -> None:
    trace = TraceBuilder()
    for i in range(5):
        trace.step(i, start_us=100 * i, dur_us=100)
        if i != 2:
            trace.launch_kernel("k", launch_us=100 * i + 10, start_us=100 * i + 20, dur_us=60)
    steps = steps_of(trace)
    assert steps.end_ns[2] == trace.ns(300)


# Left out


def test_a_long_first_step_is_warm_up_and_said() -> None:
    job = Job()
    with job.step(0):
        job.kernel("k", 5_000)
    for number in range(1, 6):
        with job.step(number):
            job.kernel("k", 1_000)
    steps = steps_of(job)
    assert steps.keep.tolist() == [False] + [True] * 5
    assert steps.why[0] == "warm-up: 5.0 times the usual length"


@pytest.mark.parametrize(("first", "kept"), [(1.25, True), (1.4, False)])
def test_warm_up_begins_at_1_3_times_the_usual(first: float, kept: bool) -> None:
    job = Job()
    for number in range(6):
        with job.step(number):
            job.kernel("k", 1_000 * (first if number == 0 else 1.0))
    assert bool(steps_of(job).keep[0]) is kept


@pytest.mark.parametrize(("number", "kept"), [(0, False), (4, True)])
def test_a_first_step_that_only_waited_for_its_batch_is_warm_up_only_of_a_loop_that_starts(
    number: int, kept: bool
) -> None:
    """Workers start in the loop's first step. Later a long wait is the loader's: no start of a
    profiler makes it slower."""
    job = Job()
    for i in range(5):
        with job.step(number + i):
            job.load(2_000 if i == 0 else 50)
            job.kernel("k", 1_000)
    assert bool(account_rank(job.trace.trace(), 0).main.steps.keep[0]) is kept


def test_a_first_step_that_computed_longer_as_well_stays_warm_up() -> None:
    job = Job()
    for i in range(5):
        with job.step(4 + i):
            job.load(2_000 if i == 0 else 50)
            job.kernel("k", 2_000 if i == 0 else 1_000)
    assert not account_rank(job.trace.trace(), 0).main.steps.keep[0]


def test_too_few_other_steps_do_not_say_what_is_usual() -> None:
    job = Job()
    for number, us in enumerate((5_000, 1_000, 1_000)):
        with job.step(number):
            job.kernel("k", us)
    assert steps_of(job).keep.all()


def test_a_last_step_that_is_cut_off_is_left_out_and_said() -> None:
    job = training(4, kernels=(100,) * 10)
    with job.step(4):
        for _ in range(7):
            job.kernel("k", 100)
    steps = steps_of(job)
    assert steps.keep.tolist() == [True] * 4 + [False]
    assert steps.why[4] == "cut off by the end of the window"


def test_a_last_step_with_four_fifths_of_its_events_counts() -> None:
    job = training(4, kernels=(100,) * 10)
    with job.step(4):
        for _ in range(8):
            job.kernel("k", 100)
    assert steps_of(job).keep.all()


def test_a_single_step_is_never_left_out() -> None:
    steps = steps_of(training(1))
    assert steps.keep.tolist() == [True]


# Without a device


def test_on_a_cpu_the_host_span_is_the_step() -> None:
    trace = cpu_training(4, python_us=100).trace.trace()
    steps = steps_on_host(find_marks(trace), (0, 1))
    assert lengths_us(steps) == [1_100.0] * 4


@pytest.mark.parametrize(("last_us", "is_kept"), [(60, False), (1_000, True)])
def test_on_a_cpu_a_last_mark_with_few_operators_is_no_step(last_us: int, is_kept: bool) -> None:
    """The profiler stops in the middle of a step: its mark is short, and so is what ran in it. A
    step that is short with all its operators is one."""
    job = Job(gpu="", backend="gloo")
    for number in range(6):
        with job.step(number):
            for _ in range(10 if number < 5 or is_kept else 1):
                with job.op("aten::mm"):
                    job.work(100 if number < 5 else last_us / 10)
    steps = account_rank(job.trace.trace(), 0).main.steps
    assert bool(steps.keep[-1]) is is_kept
    assert steps.keep[:-1].all()


def test_on_a_cpu_without_marks_the_recording_is_one_stretch() -> None:
    trace = cpu_training(4, marks=False).trace.trace()
    steps = steps_on_host(find_marks(trace), (5, 105))
    assert steps.source == "none"
    assert steps.length_ns.tolist() == [100]


def test_a_first_step_that_comes_again_is_no_warm_up() -> None:
    """Batches of several workers arrive in bursts: every fourth step waits for all of them."""
    job = Job()
    for number in range(8):
        with job.step(number):
            job.kernel("k", 500 if number % 4 == 0 else 100)
            job.synchronize()
    assert steps_of(job).keep.all()


def test_work_from_before_the_window_is_no_steps() -> None:
    """A host that is far ahead leaves kernels of earlier steps in the window; counted to the steps
    in which they run, they would make the last step look cut off."""
    trace = TraceBuilder()
    for i in range(40):
        trace.launch_kernel("old", start_us=i * 10, dur_us=10)
    for number in range(4):
        begun = number * 120
        trace.step(number, start_us=begun, dur_us=120)
        for i in range(10):
            start = 400 + number * 100 + i * 10
            trace.launch_kernel("k", launch_us=begun + i * 10, start_us=start, dur_us=10)
    assert steps_of(trace).keep.all()
