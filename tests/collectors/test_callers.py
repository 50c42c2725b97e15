"""Who called: the user's line, on the loop's thread, the outermost call only."""

from __future__ import annotations

import sys
import threading

from gpuprof.collectors.callers import CHECKPOINT, INPUT, Callers
from gpuprof.collectors.line_counts import MAX_LINES


def a_line() -> int:
    return sys._getframe(1).f_lineno


def calls(callers: Callers) -> list[tuple[str, str, int]]:
    return [(line.call, line.function, line.count) for line in callers.as_lines()]


def test_the_line_of_the_caller_is_kept_with_its_count() -> None:
    """Each line once, however often it calls."""
    callers = Callers()
    callers.thread = threading.get_ident()
    for _ in range(3):
        with callers.calling(CHECKPOINT, "torch.save", sys._getframe()):
            at = a_line() - 1
    (line,) = callers.as_lines()
    assert (line.kind, line.file, line.line, line.count) == ("checkpoint", __file__, at, 3)
    assert line.function == "test_the_line_of_the_caller_is_kept_with_its_count"


def test_a_save_inside_a_save_counts_once() -> None:
    """A distributed checkpoint calls torch.save; the user called the checkpoint."""
    callers = Callers()
    callers.thread = threading.get_ident()
    frame = sys._getframe()
    with (
        callers.calling(CHECKPOINT, "dcp.save", frame),
        callers.calling(CHECKPOINT, "torch.save", frame),
    ):
        pass
    assert [call for call, _, _ in calls(callers)] == ["dcp.save"]


def test_other_threads_keep_nobody_waiting() -> None:
    """A checkpoint that a thread writes beside training is no line to change."""
    callers = Callers()
    callers.thread = threading.get_ident()

    def save() -> None:
        with callers.calling(CHECKPOINT, "torch.save", sys._getframe()):
            pass

    thread = threading.Thread(target=save)
    thread.start()
    thread.join()
    assert not callers.as_lines()


def test_an_exception_passes_and_is_counted() -> None:
    """StopIteration ends every loop over a loader; the next call counts as before."""
    callers = Callers()
    callers.thread = threading.get_ident()
    try:
        with callers.calling(INPUT, "next(DataLoader)", sys._getframe()):
            raise KeyError("mine")
    except KeyError:
        pass
    with callers.calling(INPUT, "next(DataLoader)", sys._getframe()):
        pass
    assert sum(count for _, _, count in calls(callers)) == 2


def test_the_number_of_lines_is_bounded() -> None:
    """Generated code may have any number of them."""
    callers = Callers()
    callers.thread = threading.get_ident()
    for number in range(MAX_LINES + 50):
        with callers.calling(INPUT, f"next({number})", sys._getframe()):
            pass
    assert len(callers.lines) == MAX_LINES
