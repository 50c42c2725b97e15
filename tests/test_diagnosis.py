"""The types of the answer, and that what is written can be read back."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.runs import cpu_training, diagnosed, training
from gpuprof.diagnosis import (
    BUCKETS,
    CAUSES,
    SCHEMA_VERSION,
    Diagnosis,
    Evidence,
    Finding,
    Fix,
    Gain,
    Place,
    Window,
    from_json,
    to_json,
)

CONTRACT = {
    "schema", "gpuprof", "inputs", "run", "bound", "budget", "replay", "findings", "ruled_out",
    "not_judged", "warnings",
}  # fmt: skip


@pytest.mark.parametrize(
    "job",
    [training(5, load_us=3_000, items=2), cpu_training(4, python_us=400), training(2, marks=False)],
    ids=["device", "cpu", "no marks"],
)
def test_a_diagnosis_survives_the_round_trip(job: object) -> None:
    diagnosis = diagnosed(job)  # type: ignore[arg-type]
    data = to_json(diagnosis)
    assert from_json(data) == diagnosis
    again = to_json(from_json(data))
    assert to_json(from_json(again)) == again


def test_the_json_is_what_other_programs_rely_on() -> None:
    """Names and types of CONTRACT: the class of the bound is `class`, shares are numbers."""
    data = to_json(diagnosed(training(5, load_us=3_000)))
    value = json.loads(data)
    assert value.keys() >= CONTRACT
    assert value["schema"] == SCHEMA_VERSION == 1
    assert value["bound"]["class"] == "input"
    assert set(value["budget"]) == set(BUCKETS)
    assert set(value["run"]) >= {"world_size", "ranks", "devices", "steps"}
    assert set(value["run"]["steps"]) >= {"count", "source", "median_ms", "excluded"}
    assert set(value["replay"]) >= {"measured_ms", "replayed_ms", "error", "trusted"}
    finding = value["findings"][0]
    assert finding["cause"] == "dataloader"
    assert finding["number"] == 1
    assert set(finding["gain"]) >= {"step_ms", "reduction", "low", "high"}
    assert set(finding["fixes"][0]) >= {"title", "detail"}
    assert data.endswith(b"}\n")
    assert data.count(b"\n") > 50


def test_a_finding_without_a_gain_says_null() -> None:
    finding = Finding(
        cause="dataloader",
        number=1,
        title="",
        severity="info",
        confidence=0.5,
        share=0.1,
        gain=None,
    )
    assert json.loads(msgspec.json.encode(finding))["gain"] is None


def test_the_eight_causes_are_numbered_from_one() -> None:
    assert list(CAUSES.values()) == list(range(1, 9))
    assert len(set(BUCKETS)) == 11


def test_what_was_written_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Window(start_ns=1, end_ns=2).start_ns = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"null", b'{"schema": 1}', b"\xff\xfe", b'{"schema": "one"}'],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises((msgspec.ValidationError, msgspec.DecodeError)):
        from_json(data)


def test_a_bound_of_no_known_class_is_refused() -> None:
    value = json.loads(to_json(diagnosed(training(3))))
    value["bound"]["class"] = "magic"
    with pytest.raises(msgspec.ValidationError):
        from_json(json.dumps(value).encode())


def test_fields_of_a_newer_gpuprof_are_passed_over() -> None:
    """Additive changes keep the schema's version."""
    diagnosis = diagnosed(training(3))
    value = json.loads(to_json(diagnosis)) | {"something_new": [1]}
    assert from_json(json.dumps(value).encode()) == diagnosis


SHARES = st.floats(0, 1)
TEXTS = st.text(max_size=20)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.builds(
        Finding,
        cause=st.sampled_from(sorted(CAUSES)),
        number=st.none() | st.integers(1, 8),
        title=TEXTS,
        severity=st.sampled_from(("critical", "warning", "info")),
        confidence=SHARES,
        share=SHARES,
        gain=st.none()
        | st.builds(Gain, step_ms=SHARES, reduction=SHARES, low=SHARES, high=SHARES, how=TEXTS),
        where=st.lists(st.builds(Place, file=TEXTS, line=st.none() | st.integers(0, 9))).map(tuple),
        ranks=st.lists(st.integers(0, 9)).map(tuple),
        evidence=st.lists(
            st.builds(
                Evidence,
                text=TEXTS,
                value=st.none() | SHARES,
                windows=st.lists(
                    st.builds(
                        Window,
                        start_ns=st.integers(0, 2**62),
                        end_ns=st.integers(0, 2**62),
                        rank=st.none() | st.integers(0, 9),
                    )
                ).map(tuple),
            )
        ).map(tuple),
        fixes=st.lists(st.builds(Fix, title=TEXTS, detail=TEXTS, code=TEXTS)).map(tuple),
    )
)
def test_any_finding_survives_the_round_trip(finding: Finding) -> None:
    diagnosis = msgspec.structs.replace(BASE, findings=(finding,))
    assert from_json(to_json(diagnosis)).findings == (finding,)


BASE: Diagnosis = diagnosed(cpu_training(2))


def test_a_diagnosis_with_waits_added_up_is_still_read() -> None:
    """Waits side by side once counted twice, which for four gloo ranks was more than the step."""
    document = json.loads(to_json(diagnosed(training(2))))
    document["ranks"][0]["wait_frac"] = 1.02
    assert from_json(json.dumps(document).encode()).ranks[0].wait_frac == 1.02
    document["ranks"][0]["wait_frac"] = -0.5
    with pytest.raises(msgspec.ValidationError):
        from_json(json.dumps(document).encode())
