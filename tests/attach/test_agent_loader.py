"""What is seen of a loader's worker processes, from inside the process that trains."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuprof.attach.agent_loader import LoaderWatch


class Iterator:
    """The books that torch keeps of a loader with worker processes."""

    def __init__(self, *pids: int) -> None:
        self._workers = [SimpleNamespace(pid=pid) for pid in pids]
        self._tasks_outstanding = 8
        self._data_queue = SimpleNamespace(qsize=lambda: 3)


def put(proc: Path, pid: int, on_core: int, ready: int, read_bytes: int = 0) -> None:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    (folder / "schedstat").write_text(f"{on_core} {ready} 9\n")
    (folder / "io").write_text(f"rchar: 7\nread_bytes: {read_bytes}\n")


def test_the_counters_of_all_workers_are_read_at_both_ends(tmp_path: Path) -> None:
    put(tmp_path, 11, 1_000, 100)
    put(tmp_path, 12, 2_000, 200)
    watch, iterator = LoaderWatch(str(tmp_path)), Iterator(11, 12)
    watch.fetching(iterator)  # before the window: it only tells which loader
    watch.begin()
    watch.fetching(iterator)
    watch.fetching(iterator)
    put(tmp_path, 11, 1_500, 150)
    put(tmp_path, 12, 2_250, 200, read_bytes=4_096)
    watch.end()
    assert watch.work is not None
    assert watch.work["workers"] == 2
    assert watch.work["busy_ns"] == 500 + 50 + 250
    assert watch.work["read_bytes"] == 4_096
    assert watch.work["missing"] == [5, 5]
    assert watch.work["span_ns"] > 0


def test_workers_that_came_or_went_meanwhile_say_nothing(tmp_path: Path) -> None:
    """What one did that ended in the window is not known any more."""
    for pid in (11, 12):
        put(tmp_path, pid, 1_000, 0)
    watch, first, second = LoaderWatch(str(tmp_path)), Iterator(11), Iterator(12)
    watch.fetching(first)
    watch.begin()
    watch.fetching(second)
    watch.end()
    assert watch.work is None


@pytest.mark.parametrize("iterator", [Iterator(99), SimpleNamespace(), Iterator()])
def test_what_cannot_be_read_yields_nothing(iterator: object, tmp_path: Path) -> None:
    """A process that is gone, a loader in the training process, one that keeps other books."""
    watch = LoaderWatch(str(tmp_path))
    watch.fetching(iterator)
    watch.begin()
    watch.fetching(iterator)
    watch.end()
    assert watch.work is None


def test_a_window_that_ends_without_a_beginning_says_nothing(tmp_path: Path) -> None:
    put(tmp_path, 11, 1_000, 0)
    watch, iterator = LoaderWatch(str(tmp_path)), Iterator(11)
    watch.fetching(iterator)
    watch.end()
    assert watch.work is None


def test_books_that_fail_stop_the_counting_and_nothing_else(tmp_path: Path) -> None:
    put(tmp_path, 11, 1_000, 0)
    watch, iterator = LoaderWatch(str(tmp_path)), Iterator(11)
    watch.fetching(iterator)
    watch.begin()
    iterator._data_queue = SimpleNamespace(qsize=lambda: 1 // 0)
    watch.fetching(iterator)
    watch.end()
    assert watch.work is not None
    assert watch.work["missing"] == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_real_loader_is_followed() -> None:
    """torch's own books: every batch that was asked for is there or missing."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not count")
    from torch.utils.data import DataLoader

    loader = DataLoader(range(64), batch_size=4, num_workers=1, prefetch_factor=3)  # type: ignore[arg-type, var-annotated]
    watch, iterator = LoaderWatch(), iter(loader)
    watch.fetching(iterator)
    next(iterator)
    watch.begin()
    for _ in range(4):
        watch.fetching(iterator)
        next(iterator)
    watch.end()
    assert watch.work is not None
    assert watch.work["workers"] == 1
    assert len(watch.work["missing"]) == 4
    assert all(0 <= missing <= 3 for missing in watch.work["missing"])
    assert watch.work["busy_ns"] >= 0
