"""Calls that do not come back."""

from __future__ import annotations

from gpuprof.collectors.watchdog import GIVE_UP_S, HUNG_AFTER_S, Watchdog


def test_a_call_is_told_of_once_and_given_up_later() -> None:
    now = [0.0]
    dog = Watchdog(lambda: now[0])
    fast, start = dog.watch("fast", 3), dog.watch("start")
    fast("fields")
    start("nvmlInit")
    assert dog.hung() == []
    now[0] = HUNG_AFTER_S
    assert [(hung.label, hung.gpu, fresh) for hung, fresh in dog.hung()] == [
        ("fields", 3, True),
        ("nvmlInit", None, True),
    ]
    assert [fresh for _, fresh in dog.hung()] == [False, False]
    now[0] = GIVE_UP_S
    assert {hung.label: hung.lost for hung, _ in dog.hung()} == {"fields": True, "nvmlInit": False}


def test_a_call_that_came_back_is_forgotten_and_the_next_is_new() -> None:
    now = [0.0]
    dog = Watchdog(lambda: now[0])
    fast = dog.watch("fast", 3)
    for _ in range(2):
        fast("fields")
        now[0] += HUNG_AFTER_S
        assert [fresh for _, fresh in dog.hung()] == [True]
        fast("")
        assert dog.hung() == []
