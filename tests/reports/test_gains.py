"""A gain is told the same way everywhere: of one cause, of all together, at the top and below."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fixtures.diagnoses import sample_diagnosis
from gpuprof.diagnosis import Diagnosis
from gpuprof.reports import gains, story, text
from gpuprof.reports.html import write_html
from gpuprof.reports.markdown import to_markdown
from gpuprof.reports.words import catalog

WORDS = catalog("en")


def without_length(diagnosis: Diagnosis) -> Diagnosis:
    steps = msgspec.structs.replace(diagnosis.run.steps, mean_ms=None, median_ms=None)
    return msgspec.structs.replace(
        diagnosis, run=msgspec.structs.replace(diagnosis.run, steps=steps)
    )


def test_one_cause_and_all_causes_are_told_in_the_same_form() -> None:
    sample = sample_diagnosis()
    first, best = sample.findings[0], sample.together
    assert first.gain is not None and best is not None
    one, all_of_them = gains.of_cause(first, sample, WORDS), gains.of_all(sample, WORDS)
    for said, gain in ((one, first.gain), (all_of_them, best)):
        after = text.milliseconds(gain.step_ms)
        step = text.milliseconds(sample.run.steps.length_ms or 0.0)
        assert f"takes {after} instead of {step}: {text.percent(gain.reduction)} less." in said
    bare = without_length(sample)
    assert "shorter" in gains.of_cause(first, bare, WORDS)
    assert "shorter" in gains.of_all(bare, WORDS)


def test_a_replay_that_does_not_fit_gives_both_the_same_reason() -> None:
    sample = sample_diagnosis()
    unpriced = tuple(msgspec.structs.replace(f, gain=None) for f in sample.findings)
    replay = msgspec.structs.replace(sample.replay, error=0.08, trusted=False)
    untrusted = msgspec.structs.replace(sample, findings=unpriced, together=None, replay=replay)
    one = gains.of_cause(untrusted.findings[0], untrusted, WORDS)
    assert one == gains.of_all(untrusted, WORDS)
    assert text.percent(0.08) in one


def test_the_page_has_one_length_of_a_step() -> None:
    """The mean, which the budget and the gains are shares of; the median is an aside."""
    sample = sample_diagnosis()
    steps = msgspec.structs.replace(sample.run.steps, mean_ms=180.0, median_ms=170.0)
    run = msgspec.structs.replace(sample.run, steps=steps)
    figures = story.key_figures(msgspec.structs.replace(sample, run=run), WORDS)
    assert (figures[0].value, "170.0" in figures[0].note) == (text.milliseconds(180.0), True)


@pytest.mark.parametrize("lang", ["en", "zh-CN"])
def test_the_top_of_the_page_says_what_to_change_and_what_it_saves(
    lang: str, tmp_path: Path
) -> None:
    """The first screen answers all three questions, in the order and numbers of the findings."""
    sample = sample_diagnosis()
    path = tmp_path / "report.html"
    write_html(sample, (), path, lang=lang)
    source = path.read_text(encoding="utf-8")
    top = source[source.index('<table class="changes">') : source.index("<main>")]
    shown = gains.changes(sample, WORDS)
    assert [change.what for change in shown] == [f.fixes[0].title for f in sample.findings[:3]]
    for change in shown:
        assert f'href="#finding-{change.number}"' in top
        assert f'id="finding-{change.number}"' in source
        assert change.saved.split(text.NBSP)[0] in top
        assert change.place in top


def test_a_change_without_a_fix_or_a_gain_is_named_by_its_finding() -> None:
    sample = sample_diagnosis()
    bare = msgspec.structs.replace(sample.findings[0], fixes=(), gain=None, where=())
    change = gains.changes(msgspec.structs.replace(sample, findings=(bare,)), WORDS)[0]
    assert change == gains.Change(1, bare.title, "", "", "", "")


def test_what_stands_between_backticks_is_code_in_evidence() -> None:
    sample = sample_diagnosis()
    first = sample.findings[0]
    item = msgspec.structs.replace(first.evidence[0], text="33 × `.item()` a step")
    told = msgspec.structs.replace(first, evidence=(item,))
    shown = to_markdown(msgspec.structs.replace(sample, findings=(told,)))
    assert "- 33 × `.item()` a step" in shown
