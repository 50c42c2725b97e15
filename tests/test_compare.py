"""`compare`: changes that are real are told with their size, and equal runs come out as equal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import gpuprof
from fixtures.diagnoses import HOSTILE, hostile_diagnosis, sample_diagnosis
from fixtures.runs import training
from gpuprof.analyzers.change import MIN_SAMPLES, change_of, mean_of, student_quantile
from gpuprof.analyzers.compare import RunSamples, compare_runs, samples_of
from gpuprof.cli import main
from gpuprof.compare_runs import kept_diagnosis, load_run
from gpuprof.comparison import to_json
from gpuprof.diagnosis import BUCKETS, Diagnosis, RuledOut
from gpuprof.diagnosis import to_json as diagnosis_json
from gpuprof.errors import InputError
from gpuprof.reports.comparison import headline, movements, to_markdown, to_text
from gpuprof.reports.words import catalog

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases" / "traces"
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason="the labelled recordings are not here")


def with_steps(step_ms: Any, **changes: Any) -> Diagnosis:
    """A diagnosis of one rank with these step lengths."""
    base = sample_diagnosis()
    lengths = tuple(float(v) for v in step_ms)
    rank = msgspec.structs.replace(base.ranks[0], step_ms=lengths)
    steps = msgspec.structs.replace(
        base.run.steps,
        count=len(lengths),
        mean_ms=float(np.mean(lengths)),
        median_ms=float(np.median(lengths)),
    )
    run = msgspec.structs.replace(base.run, steps=steps)
    return msgspec.structs.replace(base, ranks=(rank,), run=run, **changes)


# The statistics


@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [(0.975, 10, 2.2281), (0.995, 4, 4.6041), (0.995, 30, 2.7500), (0.995, 1e6, 2.5758)],
)
def test_quantiles_are_those_of_the_tables(
    probability: float, degrees: float, expected: float
) -> None:
    assert student_quantile(probability, degrees) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("kind", ["normal", "skewed", "correlated"])
@pytest.mark.parametrize("count", [6, 20, 100])
def test_equal_series_are_called_different_in_at_most_5_of_100(kind: str, count: int) -> None:
    """Also with skewed and autocorrelated steps, as real ones are."""
    rng = np.random.default_rng(7)

    def draw() -> Any:
        if kind == "normal":
            return rng.normal(100, 5, count)
        if kind == "skewed":
            return 100 * rng.lognormal(0, 0.4, count)
        noise, series = rng.normal(0, 5, count + 20), np.zeros(count + 20)
        for i in range(1, count + 20):
            series[i] = 0.5 * series[i - 1] + noise[i]
        return 100 + series[20:]

    wrong = sum(bool(change_of(draw(), draw()).beyond_noise) for _ in range(400))
    assert wrong <= 20


def test_a_change_of_a_fifth_is_seen_in_ten_quiet_steps() -> None:
    rng = np.random.default_rng(1)
    seen = [
        change_of(rng.normal(100, 2, 10), rng.normal(80, 2, 10)).beyond_noise for _ in range(100)
    ]
    assert sum(map(bool, seen)) >= 90


def test_the_interval_holds_the_difference_and_turns_round_with_the_sides() -> None:
    there, back = (
        change_of([10, 11, 12, 10], [8, 9, 8, 8]),
        change_of([8, 9, 8, 8], [10, 11, 12, 10]),
    )
    assert there.low is not None and there.high is not None
    assert there.low < there.difference < there.high
    assert back.low == pytest.approx(-there.high)


def test_few_samples_have_no_error() -> None:
    assert mean_of([5.0] * (MIN_SAMPLES - 1)).error is None
    assert change_of([5.0], [4.0, 4.0, 4.0]).beyond_noise is None


def test_steps_that_never_vary_are_still_allowed_to_differ_between_starts() -> None:
    """Equal steps within a run do not say that the next start has the same."""
    assert change_of([100.0] * 10, [100.5] * 10).beyond_noise is False
    assert change_of([100.0] * 10, [120.0] * 10).beyond_noise is True


# The comparison


def test_the_sides_swapped_swap_the_verdict() -> None:
    slow, fast = with_steps([100, 101, 99, 100, 102]), with_steps([80, 81, 80, 79, 80])
    assert compare_runs(slow, fast).verdict == "faster"
    assert compare_runs(fast, slow).verdict == "slower"
    assert compare_runs(slow, slow).verdict == "identical"


def test_parts_add_up_to_the_change_of_the_step(tmp_path: Path) -> None:
    """With samples from traces: what the step lost is what its parts lost."""
    slow = training(6, load_us=4_000).trace.write(tmp_path / "a.json.gz")
    fast = training(6, load_us=300).trace.write(tmp_path / "b.json.gz")
    comparison = gpuprof.compare(slow, fast)
    assert comparison.step is not None
    assert comparison.verdict == "faster"
    assert comparison.shrank[0] == "input"
    assert [part.bucket for part in comparison.parts] == list(BUCKETS)
    total = sum(part.change_ms for part in comparison.parts)
    assert total == pytest.approx(comparison.step.change_ms, abs=0.01)
    states = {cause.cause: cause.state for cause in comparison.causes}
    assert states["dataloader"] in ("gone", "smaller")


def test_a_run_against_itself_shows_nothing(tmp_path: Path) -> None:
    trace = training(6, load_us=4_000).trace.write(tmp_path / "a.json.gz")
    comparison = gpuprof.compare(trace, trace)
    assert comparison.verdict == "identical"
    assert not comparison.shrank and not comparison.surfaced and not comparison.kernels
    assert not comparison.warnings
    assert {cause.state for cause in comparison.causes} <= {"same"}
    assert {part.beyond_noise for part in comparison.parts} == {False}
    assert headline(comparison, catalog()).startswith(
        "Identical: both sides are the same recording"
    )
    copy = tmp_path / "copy.json.gz"
    copy.write_bytes(trace.read_bytes())
    assert gpuprof.compare(trace, copy).verdict == "identical"
    kept = tmp_path / "diagnosis.json"
    kept.write_bytes(diagnosis_json(gpuprof.analyze(trace)))
    assert gpuprof.compare(trace, kept).verdict == "identical"
    again = training(6, load_us=4_100).trace.write(tmp_path / "b.json.gz")
    assert gpuprof.compare(trace, again).verdict == "no difference"


def test_kept_diagnoses_know_the_noise_of_parts_and_causes(tmp_path: Path) -> None:
    """What CI keeps of the main branch must compare like the recording that it was made from."""
    slow = training(6, load_us=4_000).trace.write(tmp_path / "a.json.gz")
    fast = training(6, load_us=300).trace.write(tmp_path / "b.json.gz")
    kept = tmp_path / "diagnosis.json"
    kept.write_bytes(diagnosis_json(gpuprof.analyze(slow)))
    whole, short = gpuprof.compare(slow, fast), gpuprof.compare(kept, fast)
    assert [p.beyond_noise for p in short.parts] == [p.beyond_noise for p in whole.parts]
    assert [c.state for c in short.causes] == [c.state for c in whole.causes]
    for part, other in zip(short.parts, whole.parts, strict=True):
        assert part.change_ms == pytest.approx(other.change_ms, abs=1e-3)


def test_of_causes_whose_noise_is_unknown_nothing_is_claimed() -> None:
    """Neither a change nor that there is none, and it is said why."""
    few = compare_runs(with_steps([100, 101]), with_steps([104, 103]))
    assert {cause.state for cause in few.causes} == {"unclear"}
    assert any("needed to know the noise" in warning for warning in few.warnings)
    shown = to_text(few)
    assert "can't be told: the noise is unknown" in shown
    assert "no difference beyond noise" not in shown
    # Kept by a version that did not keep the parts: the step's noise is known, theirs is not.
    many = compare_runs(with_steps([100, 101, 99, 100]), with_steps([100, 102, 99, 101]))
    assert many.verdict == "no difference"
    assert {cause.state for cause in many.causes} == {"unclear"}
    assert any("neither side holds what each step spent" in warning for warning in many.warnings)


def test_a_cause_costs_what_its_rule_measured_and_not_what_its_part_holds() -> None:
    """Exposed copies hold those within a device, which are none of the cause's."""
    base = with_steps([100, 101, 99, 100])
    cause = base.findings[0].cause
    ruled_out = RuledOut(cause=cause, why="", share=0.018)
    after = msgspec.structs.replace(
        with_steps([50, 51, 49, 50]),
        findings=(),
        ruled_out=(ruled_out,),
        not_judged=(),
    )
    found = next(c for c in compare_runs(base, after).causes if c.cause == cause)
    assert found.after_ms == pytest.approx(0.018 * 50)
    unmeasured = msgspec.structs.replace(
        after, ruled_out=(msgspec.structs.replace(ruled_out, share=None),)
    )
    found = next(c for c in compare_runs(base, unmeasured).causes if c.cause == cause)
    assert (found.after_ms, found.state) == (None, "unknown")


def test_halves_of_one_run_differ_in_at_most_5_of_100_tries() -> None:
    """Random halves of the steps of one run: nothing changed between them."""
    rng = np.random.default_rng(3)
    base = sample_diagnosis()
    lengths = 175 * rng.lognormal(0, 0.06, 24)
    parts = {bucket: lengths * share for bucket, share in base.budget.items()}
    claims = 0
    for _ in range(100):
        order = rng.permutation(24)
        halves = [
            RunSamples(lengths[half], {b: v[half] for b, v in parts.items()})
            for half in (np.sort(order[:12]), np.sort(order[12:]))
        ]
        comparison = compare_runs(base, base, *halves)
        claims += bool(
            comparison.verdict != "no difference" or comparison.shrank or comparison.surfaced
        )
    assert claims <= 5


def test_one_step_each_says_that_the_noise_is_unknown() -> None:
    comparison = compare_runs(with_steps([100]), with_steps([50]))
    assert comparison.verdict == "unknown"
    assert comparison.step is not None and comparison.step.low_ms is None
    assert "not known" in headline(comparison, catalog())


def test_without_any_step_nothing_is_compared() -> None:
    empty = msgspec.structs.replace(sample_diagnosis(), ranks=())
    assert compare_runs(empty, empty).verdict == "identical"
    other = msgspec.structs.replace(empty, files=(), headline="another")
    comparison = compare_runs(empty, other)
    assert comparison.step is None and comparison.verdict == "unknown" and comparison.warnings
    assert "can't be compared" in to_text(comparison)


def test_ranks_with_unequal_steps_are_cut_to_the_shortest() -> None:
    base = sample_diagnosis(2)
    rows = [
        msgspec.structs.replace(row, step_ms=lengths)
        for row, lengths in zip(base.ranks, [(9.0, 10.0, 10.0), (20.0, 20.0)], strict=True)
    ]
    series = samples_of(msgspec.structs.replace(base, ranks=tuple(rows))).step_ms
    assert series.tolist() == [15.0, 15.0]


@needs_cases
def test_workers_for_the_loader_pay_and_bring_hidden_work_out() -> None:
    """A real pair: 58 ms of input went, 45 ms of the step did."""
    comparison = gpuprof.compare(CASES / "resnet50-workers0", CASES / "resnet50-workers4")
    assert comparison.verdict == "faster"
    assert comparison.step is not None and -0.35 < comparison.step.change < -0.15
    assert comparison.shrank == ("input",)
    assert comparison.before.bound == "input" != comparison.after.bound
    assert any("came back" in line for line in movements(comparison, catalog()))
    assert comparison.different["loader"] == ("in the training process", "worker processes")


@needs_cases
def test_recordings_without_steps_are_compared_whole_and_said_to_be() -> None:
    comparison = gpuprof.compare(CASES / "sam-amg-before", CASES / "sam-amg-after")
    assert comparison.verdict == "unknown"
    assert comparison.step is not None and comparison.step.change == pytest.approx(-0.81, abs=0.02)
    assert set(comparison.shrank) >= {"compute", "sync", "host"}
    assert {c.cause for c in comparison.causes if c.state == "gone"} >= {"sync-points"}
    assert headline(comparison, catalog()).startswith("The recording takes")


@needs_cases
@pytest.mark.parametrize("case", ["resnet50-workers0", "resnet50-workers4", "v100-compute-bound"])
def test_halves_of_real_recordings_do_not_differ(case: str) -> None:
    """The steps of a real run, split at random 100 times."""
    run = load_run(CASES / case)
    rng = np.random.default_rng(5)
    steps = run.samples.step_ms
    claims = 0
    for _ in range(100):
        order = rng.permutation(len(steps))
        half = len(steps) // 2
        pieces = [
            RunSamples(
                steps[chosen], {b: values[chosen] for b, values in run.samples.parts_ms.items()}
            )
            for chosen in (np.sort(order[:half]), np.sort(order[half:]))
        ]
        comparison = compare_runs(run.diagnosis, run.diagnosis, *pieces)
        claims += comparison.verdict not in ("no difference", "unknown")
    assert claims <= 5


# Kept diagnoses, files and text


def test_a_kept_diagnosis_stands_for_its_run(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "diagnosis.json").write_bytes(diagnosis_json(sample_diagnosis()))
    (folder / "report.html").write_text("")
    assert kept_diagnosis(folder) == sample_diagnosis()
    assert gpuprof.compare(folder, folder / "diagnosis.json").verdict == "identical"
    (folder / "trace.json").write_text("{}")
    assert kept_diagnosis(folder) is None, "a folder with traces is analyzed anew"


@pytest.mark.parametrize("change", [{"schema": 99}, {"budget": 5}])
def test_a_kept_diagnosis_of_another_kind_is_one_line(tmp_path: Path, change: Any) -> None:
    document = json.loads(diagnosis_json(sample_diagnosis())) | change
    path = tmp_path / "diagnosis.json"
    path.write_text(json.dumps(document, indent=2))
    with pytest.raises(InputError, match=r"diagnosis|schema"):
        gpuprof.compare(path, path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("findings.0.share", -5),
        ("findings.0.share", 1.5),
        ("findings.0.confidence", 2),
        ("findings.0.gain.reduction", -0.1),
        ("findings.0.gain.step_ms", -1),
        ("ruled_out.0.share", -5),
        ("budget.compute", 5),
        ("bound.confidence", -1),
        ("run.steps.median_ms", -3),
        ("ranks.0.step_ms.0", -3),
        ("together.reduction", 7),
    ],
)
def test_numbers_that_cant_be_are_refused_where_a_diagnosis_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, value: float
) -> None:
    """A share of -500 % is below every limit: a gate must not let it pass."""
    document = json.loads(diagnosis_json(sample_diagnosis()))
    *way, last = (int(part) if part.isdigit() else part for part in place.split("."))
    holder: Any = document
    for part in way:
        holder = holder[part]
    assert place.startswith("ruled_out") or isinstance(last, int) or last in holder
    holder[last] = value
    path = tmp_path / "diagnosis.json"
    path.write_text(json.dumps(document, indent=2))
    for command in (["gate", path, "--max", "dataloader=0.9"], ["compare", path, path]):
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in command])
        said = capsys.readouterr()
        assert (caught.value.code, said.out) == (2, "")
        assert "no diagnosis that this version reads" in said.err and "Expected" in said.err


def test_without_steps_the_tables_are_of_the_recording() -> None:
    def bare(diagnosis: Diagnosis) -> Diagnosis:
        steps = msgspec.structs.replace(diagnosis.run.steps, source="none")
        return msgspec.structs.replace(
            diagnosis, run=msgspec.structs.replace(diagnosis.run, steps=steps)
        )

    before = sample_diagnosis()
    other = msgspec.structs.replace(before.files[0], sha256="0" * 64)
    after = msgspec.structs.replace(before, files=(other,), budget={"compute": 1.0})
    marked, whole = compare_runs(before, after), compare_runs(bare(before), bare(after))
    assert "Part of the step" in to_text(marked) and "Part of the step" in to_markdown(marked)
    for shown in (to_text(whole), to_markdown(whole)):
        assert "Part of the recording" in shown and "Part of the step" not in shown


def test_hostile_texts_stay_text() -> None:
    """Facts and kernel names come out of a stranger's trace."""
    hostile = hostile_diagnosis()
    other = msgspec.structs.replace(hostile, facts=dict.fromkeys(hostile.facts, "x"))
    comparison = compare_runs(hostile, other)
    document = to_markdown(comparison)
    assert re.search(r"(?<!\\)<script|(?<!\\)\]\(javascript", document) is None
    assert "\x1b" not in to_text(comparison) + document
    assert HOSTILE not in document


def test_the_command_prints_what_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "diagnosis.json"
    path.write_bytes(diagnosis_json(sample_diagnosis()))
    outputs = {}
    for form in (["--json", "-"], ["--format", "md"], ["--format", "json"], []):
        with pytest.raises(SystemExit) as caught:
            main(["compare", str(path), str(path), *form])
        assert caught.value.code == 0
        outputs[" ".join(form)] = capsys.readouterr().out
    expected = to_json(gpuprof.compare(path, path)).decode()
    assert outputs["--json -"] == outputs["--format json"] == expected
    assert outputs["--format md"].startswith("# Identical")
    assert outputs[""].startswith("Identical")


def busy(diagnosis: Diagnosis, share: str) -> Diagnosis:
    """The same, recorded while others had the cores for that share of the time."""
    facts = {**diagnosis.facts, "waiting for a core": f"{share} of the recorded time"}
    return msgspec.structs.replace(diagnosis, facts=facts)


def steps_around(length_ms: float) -> list[float]:
    return [length_ms * (1 + 0.02 * (-1) ** i) for i in range(20)]


def test_what_others_on_the_machine_took_is_no_change_of_the_job() -> None:
    """The same 80 ms of work on a quiet and on a busy machine."""
    quiet, loaded = with_steps(steps_around(88)), with_steps(steps_around(400))
    assert compare_runs(quiet, loaded).verdict == "slower"
    explained = compare_runs(busy(quiet, "9.1\u00a0%"), busy(loaded, "80\u00a0%"))
    assert explained.verdict == "no difference"
    assert any("other processes had the cores" in warning for warning in explained.warnings)
    back = compare_runs(busy(loaded, "80\u00a0%"), busy(quiet, "9.1\u00a0%"))
    assert back.verdict == "no difference"


def test_a_run_that_is_slower_although_it_waited_less_is_slower() -> None:
    before, after = with_steps(steps_around(100)), with_steps(steps_around(160))
    assert compare_runs(busy(before, "40\u00a0%"), busy(after, "5\u00a0%")).verdict == "slower"
    assert compare_runs(busy(before, "5\u00a0%"), busy(after, "5\u00a0%")).verdict == "slower"
    assert compare_runs(busy(after, "5\u00a0%"), busy(before, "40\u00a0%")).verdict == "faster"
    # Where one side does not know what it waited, nothing is taken out.
    assert compare_runs(before, busy(after, "90\u00a0%")).verdict == "slower"
