"""Cause 8: saves that stop training, and what a recording can say of them at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.runs import plain
from fixtures.traces import TraceBuilder
from fixtures.views import Machine, texts, view
from gpuprof.analyzers.causes import checkpoint
from gpuprof.analyzers.recorded_window import RecordedWindow
from gpuprof.diagnosis import Finding, NotJudged, RuledOut
from gpuprof.run import CallLine

TO_HOST = "DtoH (Device -> Pageable)"
SAVE = "torch/serialization.py(944): save"


def loop(
    *,
    save_at: tuple[int, ...] = (),
    annotation: str = "",
    frames: bool = False,
    save_us: float = 4_000.0,
) -> Machine:
    """Twelve steps of about 1 ms; a save copies 8 MB in 0.5 ms and writes for `save_us`."""
    machine = Machine()
    for number in range(12):
        with machine.step(number):
            machine.kernel("ampere_sgemm_128x128_nn", 990)
            machine.synchronize()
            if frames:
                with machine.python("train.py(40): train_step"):
                    machine.work(3)
            if number in save_at:
                if annotation:
                    with machine.annotation(annotation):
                        save(machine, save_us)
                elif frames:
                    with machine.python("train.py(52): write", SAVE):
                        save(machine, save_us)
                else:
                    save(machine, save_us)
    return machine


def save(machine: Machine, us: float) -> None:
    machine.copy(TO_HOST, 8_000_000, 500, blocking=True)
    machine.work(us)


def test_saves_are_found_with_period_bytes_and_gain() -> None:
    """Three saves of 4.5 ms in twelve steps of 1 ms: 13.5 of 25.5 ms."""
    found = checkpoint.judge(view(loop(save_at=(2, 6, 10), annotation="torch.save").trace))
    assert isinstance(found, Finding)
    assert (found.cause, found.number, found.severity) == ("checkpoint", 8, "critical")
    assert found.share == pytest.approx(13.5 / 25.5, abs=0.02)
    assert found.gain is not None
    assert found.gain.reduction == pytest.approx(13.5 / 25.5, abs=0.02)
    said = texts(found.evidence)
    assert "3 saves in 12 steps" in said
    assert "Saves come every 4 steps." in said
    assert "8 MB are copied to the host" in said
    assert "4.5 steps" in said
    assert "Save less often" in texts(found.fixes)
    assert found.confidence > 0.9


def test_one_save_says_that_its_period_is_not_known() -> None:
    """A window holds one save out of a thousand steps as well as out of twelve."""
    found = checkpoint.judge(view(loop(save_at=(5,), annotation="gpuprof.checkpoint").trace))
    assert isinstance(found, Finding)
    assert "how often they come is not known" in texts(found.evidence)
    assert "Save less often" not in texts(found.fixes)
    assert found.confidence < 0.9


def test_python_frames_show_the_save_and_its_line() -> None:
    found = checkpoint.judge(view(loop(save_at=(2, 6, 10), frames=True).trace))
    assert isinstance(found, Finding)
    assert (found.where[0].file, found.where[0].line) == ("train.py", 52)


def test_short_saves_are_ruled_out_by_their_share() -> None:
    verdict = checkpoint.judge(
        view(loop(save_at=(5,), annotation="save_checkpoint", save_us=20.0).trace)
    )
    assert isinstance(verdict, RuledOut)
    assert "one save in the recorded steps" in verdict.why


def test_python_frames_without_a_save_rule_it_out() -> None:
    verdict = checkpoint.judge(view(busy_host(frames=True).trace))
    assert isinstance(verdict, RuledOut)
    assert verdict.why == "no checkpoint was written in the recorded steps"


def busy_host(*, frames: bool = False, op: str = "") -> Machine:
    """Steps of which the host holds up more than half."""
    machine = Machine()
    for number in range(6):
        with machine.step(number):
            machine.kernel("ampere_sgemm_128x128_nn", 400)
            machine.synchronize()
            if frames:
                with machine.python("train.py(40): prepare"):
                    machine.work(600)
            else:
                begun = machine.now
                machine.work(600)
                if op:
                    machine.trace.op(op, start_us=begun, dur_us=600)
    return machine


def test_host_work_without_a_name_may_be_a_save() -> None:
    """torch.save runs no operator: a plain trace can't exclude it."""
    verdict = checkpoint.judge(view(busy_host().trace))
    assert isinstance(verdict, NotJudged)
    assert "gpuprof.annotate" in verdict.command
    assert "with_stack" in verdict.command


def test_a_busy_device_excludes_it_without_any_name() -> None:
    machine = Machine()
    for number in range(6):
        with machine.step(number):
            machine.kernel("ampere_sgemm_128x128_nn", 900)
    verdict = checkpoint.judge(view(machine.trace))
    assert isinstance(verdict, RuledOut)
    assert "no checkpoint can have cost more" in verdict.why


@pytest.mark.parametrize("op", ["CheckpointFunction", "CheckpointFunctionBackward"])
def test_activation_checkpointing_is_no_save(op: str) -> None:
    assert not isinstance(checkpoint.judge(view(busy_host(op=op).trace)), Finding)


def test_a_cpu_run_is_judged_as_well() -> None:
    """The CPU as the device: a save stops it as it stops a GPU."""
    trace = TraceBuilder(gpu="", backend="gloo")
    now = 0.0
    for number in range(8):
        begun = now
        trace.op("aten::mm", start_us=now, dur_us=1000)
        now += 1000
        if number % 4 == 2:
            trace.annotation("torch.save", start_us=now, dur_us=2000)
            now += 2000
        trace.step(number, start_us=begun, dur_us=now - begun)
    found = checkpoint.judge(view(trace))
    assert isinstance(found, Finding)
    assert found.share == pytest.approx(4 / 12, abs=0.01)
    assert found.gain is not None
    assert found.gain.reduction == pytest.approx(4 / 12, abs=0.01)


def noted(saves: int, total_ms: float, *, call: str = "torch.save") -> RecordedWindow:
    """A run of 10 s with saves that are not in the window."""
    line = CallLine(
        kind="checkpoint",
        call=call,
        file="train.py",
        line=61,
        function="main",
        count=saves,
        total_ms=total_ms,
    )
    return RecordedWindow(
        *(0, 1.0, 1.0, None, None, 5.0), windows_ms=500.0, run_ms=10_500.0, call_lines=(line,)
    )


def test_saves_outside_the_window_are_found_without_a_gain() -> None:
    """A save every hundredth step is in no window; the recorder timed it, and no replay can."""
    run = replace(view(loop(frames=True).trace), told={0: noted(4, 2_000.0)})
    found = checkpoint.judge(run)
    assert isinstance(found, Finding)
    assert found.share == pytest.approx(0.2)
    assert found.gain is None
    assert [(place.file, place.line) for place in found.where] == [("train.py", 61)]
    assert "4 saves, 500.0 ms each" in texts(found.evidence)
    assert found.confidence <= 0.6


@pytest.mark.parametrize(
    ("window", "words"),
    [
        (noted(4, 200.0), "in the whole run saving took 2.0 %"),
        (noted(4, 5_000.0, call="os.fsync"), "no checkpoint was written in the recorded steps"),
    ],
)
def test_rare_saves_and_flushes_alone_are_no_checkpoints(
    window: RecordedWindow, words: str
) -> None:
    """A logger flushes its file, too."""
    verdict = checkpoint.judge(replace(view(loop(frames=True).trace), told={0: window}))
    assert isinstance(verdict, RuledOut | NotJudged)
    said = verdict.why if isinstance(verdict, RuledOut) else verdict.missing
    assert words in plain(said) or "no checkpoint can have cost more" in said


def test_saves_in_the_window_are_priced_by_it() -> None:
    """They are replayed; from the recorder comes the line that no stack has, and what the whole run
    spent."""
    run = view(loop(save_at=(2, 6, 10), annotation="torch.save").trace)
    alone = checkpoint.judge(run)
    beside = checkpoint.judge(replace(run, told={0: noted(99, 9_000.0)}))
    assert isinstance(alone, Finding)
    assert isinstance(beside, Finding)
    assert (beside.share, beside.gain) == (alone.share, alone.gain)
    assert [place.line for place in beside.where] == [61]
    assert "In the whole run saving took 90 % of the time" in plain(texts(beside.evidence))


def test_a_window_that_caught_a_rare_save_does_not_speak_for_the_run() -> None:
    """Ten steps hold the one save of a thousand: the recorder timed all of them."""
    run = view(loop(save_at=(6,), annotation="torch.save").trace)
    assert isinstance(checkpoint.judge(run), Finding)
    verdict = checkpoint.judge(replace(run, told={0: noted(2, 40.0)}))
    assert isinstance(verdict, RuledOut)
    assert "in the whole run saving took 0.4 % of the time (2 saves, 20.0 ms each)" in plain(
        verdict.why
    )
    unseen = replace(
        run, told={0: noted(0, 0.0)}
    )  # saved by a call that the recorder does not know
    assert isinstance(checkpoint.judge(unseen), Finding)
