"""The timeline holds every event when it can, and says what it left out when it cannot."""

from __future__ import annotations

import base64
import json
import zlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.diagnoses import MS, T0_NS, US, Event, make_trace, sample_diagnosis, sample_traces
from fixtures.runs import Job, training, view
from gpuprof.analyzers.account import RankAccount
from gpuprof.diagnosis import Window
from gpuprof.reports import names, packing, timeline
from gpuprof.reports.html import decisive_windows
from gpuprof.reports.lanes import (
    CLASSES,
    MIN_GAP_NS,
    Arranged,
    arrange,
    busy_bins,
    idle_gaps,
    merged_key,
)
from gpuprof.reports.linked import linked_rows
from gpuprof.reports.thinning import inside, thin
from gpuprof.reports.words import catalog
from gpuprof.trace import Category, Lane, Trace

WORDS = catalog()
HOST = Lane(pid=1, tid=1, device=None, stream=None, name="thread 1")
GPU = Lane(pid=0, tid=7, device=0, stream=7, name="stream 7")


def unpack(packed: timeline.Timeline) -> tuple[dict, list[list[tuple[str, int, int, str]]]]:
    """The page's own reading of the data: for each lane (name, start, duration, class)."""
    meta = json.loads(packed.meta)
    data = zlib.decompress(base64.b64decode(packed.data))
    lanes = []
    offset = 0
    for group in meta["groups"]:
        total = sum(count for _, _, count in group["lanes"])
        columns = []
        for _ in range(3):
            column, offset = packing.decode_column(data, offset, total)
            columns.append(column.astype(np.int64))
        at = 0
        for _, _, count in group["lanes"]:
            part = slice(at, at + count)
            start = np.cumsum(columns[0][part]) * meta["tick"]
            duration = columns[1][part] * meta["tick"]
            names = [meta["names"][index] for index in columns[2][part]]
            lanes.append(
                [
                    (n[0], int(s), int(d), CLASSES[n[1]])
                    for n, s, d in zip(names, start, duration, strict=True)
                ]
            )
            at += count
    assert offset == len(data)
    return meta, lanes


events_strategy = st.lists(
    st.tuples(
        st.integers(0, 40 * MS),
        st.integers(0, 2 * MS),
        st.sampled_from([Category.KERNEL, Category.CPU_OP, Category.GPU_ANNOTATION]),
        st.sampled_from(["a", "nccl_b", "c<d>"]),
    ),
    min_size=1,
    max_size=60,
)


def trace_of(rows: list[tuple[int, int, Category, str]]) -> Trace:
    events: list[Event] = [
        (T0_NS + start, length, kind, name, 0 if kind == Category.CPU_OP else 1, 0)
        for start, length, kind, name in rows
    ]
    return make_trace(events, [HOST, GPU])


@given(events_strategy)
@settings(max_examples=60, deadline=None)
def test_all_events_survive_the_round_trip_to_within_a_tick(
    rows: list[tuple[int, int, Category, str]],
) -> None:
    trace = trace_of(rows)
    packed = timeline.pack([trace], [], WORDS, limit_bytes=10**7)
    assert packed is not None
    _, lanes = unpack(packed)
    first = min(row[0] for row in rows)
    tick = timeline.TICK_NS
    want = sorted(
        (name, (start - first) // tick * tick, (start - first + length) // tick * tick)
        for start, length, _, name in rows
    )
    got = sorted(
        (name, start, start + length)
        for lane in lanes
        for name, start, length, kind in lane
        if kind != "idle"
    )
    assert got == want


def test_marks_on_a_stream_never_cover_its_kernels() -> None:
    trace = trace_of([(0, MS, Category.GPU_ANNOTATION, "step"), (10, 100, Category.KERNEL, "k")])
    arranged = arrange(trace, T0_NS, WORDS, MIN_GAP_NS)
    assert [(lane.kind, lane.count) for lane in arranged.lanes] == [("stream", 1), ("marks", 1)]


def test_gaps_are_idle_over_all_streams_together() -> None:
    start = np.array([0, 10, 100_000, 400_000])
    end = np.array([50_000, 20, 300_000, 400_010])
    gaps = idle_gaps(start, end)
    assert [part.tolist() for part in gaps] == [[50_000, 300_000], [100_000, 400_000]]


@given(events_strategy, st.integers(1, 3 * MS))
@settings(max_examples=60, deadline=None)
def test_thinning_keeps_windows_long_events_and_the_busy_time_of_streams(
    rows: list[tuple[int, int, Category, str]], shortest: int
) -> None:
    # On one stream device work does not overlap: lay the kernels one behind the other.
    at = 0
    laid = []
    for _, length, kind, name in rows:
        laid.append((at, length, kind, name))
        at += length + 1_000
    trace = trace_of(laid)
    whole = arrange(trace, T0_NS, WORDS, MIN_GAP_NS)
    window = (at // 4, at // 2)
    thinned = thin(whole, inside(whole, [window]), shortest, merged_key(trace))

    def spans(events: object, lane: int) -> list[tuple[int, int, int]]:
        keep = events.lane_index() == lane  # type: ignore[attr-defined]
        columns = (events.start_ns, events.end_ns, events.key)  # type: ignore[attr-defined]
        return list(zip(*(column[keep].tolist() for column in columns), strict=True))

    for index, lane in enumerate(whole.lanes):
        before = spans(whole, index)
        labels = [one.label for one in thinned.lanes]
        after = spans(thinned, labels.index(lane.label)) if lane.label in labels else []
        must = [
            span
            for span in before
            if span[1] - span[0] >= shortest or (span[0] < window[1] and span[1] > window[0])
        ]
        assert set(must) <= set(after)
        assert sum(e - s for s, e, _ in after) == sum(e - s for s, e, _ in before)
        assert all(a[1] <= b[0] for a, b in pairwise(after))


def big_trace(events: int = 20_000) -> Trace:
    rng = np.random.default_rng(3)
    rows: list[Event] = []
    at = T0_NS
    for index in range(events):
        length = int(rng.integers(1 * US, 60 * US))
        rows.append((at, length, Category.KERNEL, f"kernel_{index % 50}", 1, 0))
        rows.append((at, length // 2, Category.CPU_OP, f"aten::op_{index % 30}", 0, 0))
        at += length + int(rng.integers(500, 30 * US))
    return make_trace(rows, [HOST, GPU])


def test_the_byte_budget_is_kept_and_decisive_windows_stay_whole() -> None:
    trace = big_trace()
    window = Window(start_ns=T0_NS + 100 * MS, end_ns=T0_NS + 120 * MS, rank=0)
    full = timeline.pack([trace], [(1, window)], WORDS, limit_bytes=10**7)
    small = timeline.pack([trace], [(1, window)], WORDS, limit_bytes=40_000)
    assert full is not None
    assert small is not None
    assert full.size_bytes > 2 * 40_000
    assert small.size_bytes <= 40_000
    assert small.drawn < full.drawn
    assert any("merged" in note for note in small.notes)
    assert not any("merged" in note for note in full.notes)

    def in_window(packed: timeline.Timeline) -> list[tuple[str, int, int]]:
        _, lanes = unpack(packed)
        return sorted(
            (name, start, length)
            for lane in lanes
            for name, start, length, kind in lane
            if start < 120 * MS and start + length > 100 * MS and kind != "idle"
        )

    inner = in_window(small)
    assert len(inner) > 500
    assert inner == in_window(full)


def test_windows_that_alone_exceed_the_budget_are_cut_and_said() -> None:
    trace = big_trace(8_000)
    everything = Window(start_ns=T0_NS, end_ns=T0_NS + 10**12, rank=0)
    packed = timeline.pack([trace], [(1, everything)], WORDS, limit_bytes=20_000)
    assert packed is not None
    assert packed.size_bytes <= 20_000
    assert any("decisive windows alone" in note for note in packed.notes)


def test_no_events_make_no_timeline() -> None:
    assert timeline.pack([], [], WORDS, limit_bytes=10**6) is None
    assert timeline.pack([make_trace([], [HOST])], [], WORDS, limit_bytes=10**6) is None


def test_more_names_than_fit_are_folded_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_NAMES", 10)
    rows = [(T0_NS + i * US, 500, Category.CPU_OP, f"name {i}", 0, 0) for i in range(100)]
    packed = timeline.pack([make_trace(rows, [HOST])], [], WORDS, limit_bytes=10**6)
    assert packed is not None
    _, lanes = unpack(packed)
    assert sum(len(lane) for lane in lanes) == 100
    assert {name for lane in lanes for name, *_ in lane} >= {WORDS.say("other.name")}
    assert any("rare event names" in note for note in packed.notes)


def test_broken_clocks_stay_inside_the_horizon() -> None:
    rows = [
        (0, 10, Category.CPU_OP, "early", 0, 0),
        (2**62, 2**62, Category.KERNEL, "late", 1, 0),
        (5, -7, Category.CPU_OP, "negative", 0, 0),
    ]
    packed = timeline.pack([make_trace(rows, [HOST, GPU])], [], WORDS, limit_bytes=10**6)
    assert packed is not None
    _, lanes = unpack(packed)
    assert all(length >= 0 for lane in lanes for _, _, length, _ in lane)


def test_the_view_opens_on_the_step_of_the_first_window() -> None:
    diagnosis = sample_diagnosis()
    packed = timeline.pack(sample_traces(), decisive_windows(diagnosis), WORDS, limit_bytes=10**7)
    assert packed is not None
    meta, _ = unpack(packed)
    start, end, group = meta["home"]
    assert group == 0
    step = 175.2 * MS
    assert 1.8 * step < start < 2 * step
    assert 3 * step < end < 3.2 * step


def test_windows_follow_their_rank_and_ranks_share_a_clock() -> None:
    traces = sample_traces(3)
    window = Window(start_ns=T0_NS + MS, end_ns=T0_NS + 2 * MS, rank=2)
    packed = timeline.pack(traces, [(4, window)], WORDS, limit_bytes=10**7)
    assert packed is not None
    meta, _ = unpack(packed)
    assert meta["windows"] == [[MS, 2 * MS, 2, 4]]
    assert [group["label"] for group in meta["groups"]] == ["Rank 0", "Rank 1", "Rank 2"]


def test_busy_share_of_the_static_strip_is_exact() -> None:
    rows = [
        (0, 30, Category.KERNEL, "k"),
        (10, 30, Category.KERNEL, "overlaps"),
        (60, 40, Category.KERNEL, "k"),
    ]
    found, left_out = busy_bins(trace_of(rows), 5, 4, WORDS)
    assert left_out == 0
    assert found[0][0] == "Stream 7"
    np.testing.assert_allclose(found[0][1], [1, 1, 0, 1, 1])


def two_ranks() -> tuple[RankAccount, ...]:
    """Two ranks that load their data and meet in a collective; rank 1 comes 3 ms later."""
    jobs = []
    for rank in range(2):
        job = Job(rank=rank, world_size=2)
        job.now += 3_000 * rank
        jobs.append(training(4, load_us=2_000, collective_us=900, job=job))
    return view(*jobs).ranks


def test_gaps_are_coloured_by_what_held_them() -> None:
    [account] = view(training(5, load_us=3_000)).ranks
    packed = timeline.pack([account.trace], [], WORDS, limit_bytes=10**7, accounts=[account])
    assert packed is not None
    meta, lanes = unpack(packed)
    assert meta["groups"][0]["lanes"][0][1] == "gaps"
    held = [event for event in lanes[0] if event[3] == "idle-input"]
    assert len(held) == 4 and {event[0] for event in held} == {"Waiting for input"}
    assert all(event[2] > 1_500_000 for event in held)


def test_a_collective_has_one_number_on_all_its_ranks() -> None:
    accounts = two_ranks()
    traces = [account.trace for account in accounts]
    linked = linked_rows(accounts)
    assert [len(rows) for rows, _ in linked] == [3, 3]  # the first step is not accounted
    for (rows, numbers), trace in zip(linked, traces, strict=True):
        assert sorted(numbers.tolist()) == [1, 2, 3]
        assert all("AllReduce" in trace.names[trace.name[row]] for row in rows)
    chunks = [
        arrange(trace, 0, WORDS, MIN_GAP_NS, account, link)
        for trace, account, link in zip(traces, accounts, linked, strict=True)
    ]
    for chunk, (_, numbers) in zip(chunks, linked, strict=True):
        assert sorted(chunk.link[chunk.link > 0].tolist()) == sorted(numbers.tolist())
        kept = thin(chunk, inside(chunk, []), 10**12, 0)
        assert len(kept.link) == len(kept.start_ns)


@given(st.lists(st.integers(-(2**50), 2**50), max_size=30))
def test_signed_numbers_survive_the_fold(values: list[int]) -> None:
    folded = packing.zigzag(np.array(values, np.int64)).tolist()
    assert all(value >= 0 for value in folded)
    assert [-(v + 1) // 2 if v % 2 else v // 2 for v in folded] == values


def test_a_trace_of_which_nothing_is_drawn_stands_beside_another() -> None:
    trace = trace_of([(0, MS, Category.KERNEL, "k")])
    full = arrange(trace, T0_NS, WORDS, MIN_GAP_NS)
    nothing = np.zeros(0, np.int64)
    empty = Arranged((), nothing, nothing, full.key[:0], full.link[:0], 0)
    said, columns, left_out = names.name_ids([trace, trace], [empty, full], 10**6, WORDS)
    assert [len(column) for column in columns] == [0, 1]
    assert [said[code][0] for code in columns[1].tolist()] == ["k"]
    assert left_out == 0
