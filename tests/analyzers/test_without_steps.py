"""A recording without steps is spoken of as a recording."""

from __future__ import annotations

import re

import pytest

from fixtures.runs import Job, cpu_training, diagnosed, plain, training
from gpuprof.analyzers.without_steps import of_the_recording
from gpuprof.diagnosis import Diagnosis


@pytest.mark.parametrize(
    ("said", "as_of"),
    [
        (
            "idle: 3.1 % of the step, named from 10 %",
            "idle: 3.1 % of the recording, named from 10 %",
        ),
        ("nothing was copied in the recorded steps", "nothing was copied in the recording"),
        ("6 copies a step, 2.10 ms in all", "6 copies in the recording, 2.10 ms in all"),
        ("it takes 2.10 ms of each 9.00 ms step", "it takes 2.10 ms of the recorded 9.00 ms"),
        ("late hosts hold 20 % of a step", "late hosts hold 20 % of the recording"),
        ("too few steps were recorded", "too few steps were recorded"),
    ],
)
def test_words(said: str, as_of: str) -> None:
    assert of_the_recording(said) == as_of


def verdicts(diagnosis: Diagnosis) -> list[str]:
    found = [item.why for item in diagnosis.ruled_out]
    found += [item.missing for item in diagnosis.not_judged]
    for one in diagnosis.findings:
        found += [one.title, *(item.text for item in one.evidence)]
        found += [one.gain.how] if one.gain is not None else []
    return [plain(text) for text in found]


@pytest.mark.parametrize(
    "job",
    [
        training(2, load_us=30, items=4, work_us=20, collective_us=90, marks=False),
        training(2, load_us=4_000, work_us=900, marks=False),
        cpu_training(2, load_us=40, python_us=900, marks=False),
    ],
)
def test_no_verdict_speaks_of_a_step_that_is_not_there(job: Job) -> None:
    diagnosis = diagnosed(job)
    assert diagnosis.run.steps.source == "none"
    said = verdicts(diagnosis)
    assert any("of the recording" in text for text in said)
    assert [text for text in said if re.search(r"\b(the|a|each) step\b", text)] == []
