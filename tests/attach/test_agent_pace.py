"""Whose steps are the loop's: a wrong answer is a window of steps that are none."""

from __future__ import annotations

from gpuprof.attach.agent_pace import NO_STEP, PACE_PATIENCE, STEP, STEP_OF_ANOTHER, Pace


class Optimizer:
    """What can be referred to weakly, as torch's can."""


def test_the_first_one_sets_the_pace() -> None:
    """A critic steps several times for one step of the generator."""
    pace, generator, critic = Pace(), Optimizer(), Optimizer()
    for _ in range(4):
        assert pace.told(generator) == STEP
        assert [pace.told(critic) for _ in range(PACE_PATIENCE - 1)] == [NO_STEP] * 7


def test_the_optimizer_of_the_next_phase_takes_over() -> None:
    """Steps are the same as before, so a window goes on."""
    pace = Pace()
    for _ in range(5):
        optimizer = Optimizer()
        assert [pace.told(optimizer) for _ in range(3)] == [STEP] * 3
        del optimizer


def test_one_that_is_kept_and_steps_no_more() -> None:
    pace, before, after = Pace(), Optimizer(), Optimizer()
    assert pace.told(before) == STEP
    assert [pace.told(after) for _ in range(PACE_PATIENCE)][-1] == STEP_OF_ANOTHER
    assert pace.told(after) == STEP
    assert pace.told(before) == NO_STEP


def test_many_that_step_once_each_are_one_step() -> None:
    """An optimizer a parameter, stepped in the backward pass."""
    pace, all_of_them = Pace(), [Optimizer() for _ in range(3000)]
    for _ in range(3):
        assert sum(pace.told(one) for one in all_of_them) == STEP


def test_an_outer_loop_outlives_the_inner_ones() -> None:
    """Inner steps and outer steps are never in one window."""
    pace, outer = Pace(), Optimizer()
    told = []
    for _ in range(4):
        inner = Optimizer()
        told.append([pace.told(inner) for _ in range(3)] + [pace.told(outer)])
        del inner
    quiet = [NO_STEP] * 3
    assert told == [
        [STEP, STEP, STEP, NO_STEP],
        [*quiet, STEP_OF_ANOTHER],
        [*quiet, STEP],
        [*quiet, STEP],
    ]


def test_phases_that_take_turns_do_not_take_the_pace_for_ever() -> None:
    """Each change drops an open window, and one must be complete some time."""
    pace, one, other = Pace(), Optimizer(), Optimizer()
    changes = 0
    for _ in range(100):
        for optimizer in (one, other):
            told = [pace.told(optimizer) for _ in range(20)]
            changes += told.count(STEP_OF_ANOTHER)
    assert changes == 2  # after 8, then after 16; 32 in a row there are none
