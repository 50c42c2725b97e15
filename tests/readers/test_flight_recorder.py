"""Flight-recorder dumps: both forms, ranks from names or contents, hostile files."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from fixtures.flight_recorder import dump, entry
from gpuprof.errors import InputError
from gpuprof.readers.flight_recorder import read_flight_recorder


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_both_forms_read_alike(tmp_path: Path, form: str) -> None:
    content = dump(groups={"0": range(4)}, entries=[entry("0", 7, sizes=[[2, 3]])])
    path = tmp_path / ("trace_3" if form == "pickle" else "trace_3.json")
    path.write_bytes(pickle.dumps(content, 2) if form == "pickle" else json.dumps(content).encode())
    rank = read_flight_recorder(path).ranks[3]
    (one,) = rank.entries
    assert (one.group, one.sequence, one.sizes, one.pending) == ("0", 7, ((2, 3),), True)
    assert one.describe() == "all_reduce of 2x3 Float"
    assert rank.groups["0"].ranks == (0, 1, 2, 3)


def test_rank_from_the_groups_when_the_name_has_none(tmp_path: Path) -> None:
    path = tmp_path / "trace.pickle"
    path.write_bytes(pickle.dumps(dump(groups={"a": [0, 2], "b": [1, 2]}, entries=[])))
    assert list(read_flight_recorder(path).ranks) == [2]


def test_folder_stands_for_its_dumps(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(
            pickle.dumps(dump(groups={"0": range(3)}, entries=[]))
        )
    (tmp_path / "notes.txt").write_text("not a dump")
    assert sorted(read_flight_recorder(tmp_path).ranks) == [0, 1, 2]


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("owned",)


@pytest.mark.parametrize(
    "data", [pickle.dumps(Evil()), pickle.dumps([1]), b"", b"{", b"\x80\x02garbage", b'{"a": 1}'],
    ids=["object", "list", "empty", "cut json", "cut pickle", "other json"],
)  # fmt: skip
def test_hostile_and_foreign_files_are_one_line_errors(
    tmp_path: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace_0"
    path.write_bytes(data)
    with pytest.raises(InputError):
        read_flight_recorder(path)
    assert capsys.readouterr().out == ""


def test_two_dumps_of_one_rank_are_refused(tmp_path: Path) -> None:
    for name in ("a_0", "b_0"):
        (tmp_path / name).write_bytes(pickle.dumps(dump(groups={"0": [0, 1]}, entries=[])))
    with pytest.raises(InputError, match="both of rank 0"):
        read_flight_recorder(tmp_path)


def test_odd_fields_do_not_fail(tmp_path: Path) -> None:
    """Every field may be missing or of another type in a foreign file, beside calls that read."""
    odd = {"process_group": 3, "input_sizes": "x", "frames": [1], "state": None}
    content = {
        "entries": [{}, odd, 5, entry("0", 7)],
        "pg_config": [1],
        "pg_status": {"a": 1},
    }
    path = tmp_path / "trace_0"
    path.write_bytes(pickle.dumps(content))
    assert len(read_flight_recorder(path).ranks[0].entries) == 3


def test_gloo_leaves_its_default_group_without_a_name(tmp_path: Path) -> None:
    """PyTorch 2.13: pg_config names the group "", its calls name it "0"; numbers are strings in
    JSON, and a finished call is `scheduled` and retired."""
    done = {**entry("0", 1, operation="gloo:all_reduce"), "retired": True}
    content = dump(
        groups={"": range(2)}, entries=[done, entry("0", 2, operation="gloo:all_reduce")]
    )
    content["pg_status"] = {
        "0": {"last_enqueued_collective": "2", "last_completed_collective": "1"}
    }
    path = tmp_path / "trace_1.json"
    path.write_text(json.dumps(content))
    rank = read_flight_recorder(path).ranks[1]
    assert rank.groups["0"].ranks == (0, 1) and "" not in rank.groups
    assert [one.pending for one in rank.entries] == [False, True]
    assert rank.status == {0: (2, 1)}


def test_half_a_dump_does_not_hide_the_others(tmp_path: Path) -> None:
    """As a rank leaves it that is killed while it writes. All of them damaged is still an error."""
    whole = pickle.dumps(dump(groups={"0": range(2)}, entries=[entry("0", 7)]))
    (tmp_path / "trace_0").write_bytes(whole)
    (tmp_path / "trace_1").write_bytes(whole[:-20])
    damaged: list[str] = []
    assert set(read_flight_recorder(tmp_path, damaged).ranks) == {0}
    assert len(damaged) == 1 and "trace_1 is no flight-recorder dump" in damaged[0]
    with pytest.raises(InputError):
        read_flight_recorder(tmp_path)
    (tmp_path / "trace_0").write_bytes(whole[:-20])
    with pytest.raises(InputError, match="can be read safely"):
        read_flight_recorder(tmp_path, [])


@pytest.mark.parametrize("entries", [[3, "x", None], [{"profiling_name": 4, "state": []}]])
def test_dump_of_which_no_entry_can_be_read_is_refused(
    tmp_path: Path, entries: list[object]
) -> None:
    path = tmp_path / "trace_0.json"
    path.write_text(json.dumps({"pg_config": {}, "entries": entries}))
    with pytest.raises(InputError, match="says nothing"):
        read_flight_recorder(path)
    good = tmp_path / "trace_1.json"
    good.write_text(json.dumps(dump(groups={"0": range(2)}, entries=[entry("0", 7)])))
    damaged: list[str] = []
    assert list(read_flight_recorder([path, good], damaged).ranks) == [1]
    assert "trace_0.json" in damaged[0]
