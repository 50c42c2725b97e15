"""Rows and statuses: a failed read is null, and its reason is written once."""

from __future__ import annotations

from gpuprof.collectors.nvml_readers import Failure
from gpuprof.collectors.tier_output import TierOutput
from gpuprof.sample_format import Columns, Row, Status, StatusChange


def test_a_status_is_written_when_it_changes_and_before_its_row() -> None:
    refused = {"gone": Failure(Status.NOT_SUPPORTED, "no")}
    output = TierOutput(3, "gpu:0", "fast", ["a", "b"], refused)
    columns, first = output.declaration()
    assert isinstance(columns, Columns)
    assert isinstance(first, StatusChange)
    assert first.s == {"gone": "not_supported"}
    assert output.reading(10, 1, [0.123456, 7]) == [Row(c=3, t=10, d=1, v=[0.1235, 7])]
    lost = Failure(Status.LOST, "off the bus")
    change, row = output.reading(20, 1, [lost, 7])
    assert change == StatusChange(
        c=3, t=20, s={"gone": "not_supported", "a": "lost"}, why={"gone": "no", "a": "off the bus"}
    )
    assert row == Row(c=3, t=20, d=1, v=[None, 7])
    assert len(output.reading(30, 1, [lost, 7])) == 1
    back, _ = output.reading(40, 1, [1.0, 7])
    assert back == StatusChange(c=3, t=40, s={"gone": "not_supported"}, why={"gone": "no"})
