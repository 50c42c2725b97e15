"""Hangs from stacks: who is waited for, and that nobody is accused in a job that goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.stacks import LIBRARY, call, own, rank, waiting
from gpuprof.analyzers.hang import findings_from_stacks, join_hangs, with_stacks
from gpuprof.analyzers.nccl.evidence import cause_classes
from gpuprof.analyzers.nccl.flight import findings_from_flight
from gpuprof.analyzers.standing import standing
from gpuprof.diagnosis import Evidence, Finding
from gpuprof.readers.stacks import read_stacks
from gpuprof.stacks import RankStacks


def the_hang(*ranks: RankStacks) -> Finding:
    (found,) = findings_from_stacks(ranks)
    assert found.cause == "hang"
    return found


def texts(found: Finding) -> str:
    return " ".join(item.text for item in found.evidence)


def test_a_rank_that_sleeps_is_waited_for() -> None:
    """The answer names the collective, the rank, its line, and where it was called from."""
    asleep = rank(1, own(15, "save", "time.sleep(9)"), own(32), kernel="sleep")
    found = the_hang(waiting(0), asleep, waiting(2), waiting(3))
    assert found.late_ranks == (1,)
    assert found.ranks == (0, 2, 3)
    assert found.title == "Rank 1 did not come to all_reduce: it sleeps at train.py:15 (save)"
    assert (found.where[0].file, found.where[0].line) == ("/job/train.py", 15)
    assert "called from train.py:32" in texts(found)
    assert found.severity == "critical"


def test_a_rank_that_left_a_collective_out_is_the_smaller_group() -> None:
    """All of them wait; the one in another call went another way."""
    found = the_hang(waiting(0), waiting(1, 54, "broadcast"), waiting(2), waiting(3))
    assert found.late_ranks == (1,)
    assert "it is in broadcast at train.py:54" in found.title
    assert cause_classes(found)[0] == "collective_mismatch"


def test_of_two_ranks_the_one_further_on_left_it_out() -> None:
    """Without a majority the place in the program decides, with less confidence."""
    found = the_hang(waiting(0, 51, world_size=2), waiting(1, 54, "broadcast", world_size=2))
    assert found.late_ranks == (1,)
    assert found.confidence < 0.7


def test_counters_of_the_loop_tell_who_is_ahead_in_one_line() -> None:
    """In the same line of the same loop, a higher step has left a call out."""
    ranks = [waiting(n, values={"step": "21" if n == 2 else "20", "epoch": "1"}) for n in range(4)]
    found = the_hang(*ranks)
    assert found.late_ranks == (2,)
    assert "counter step is 21 on rank 2" in texts(found)


def test_a_rank_without_a_process_has_ended() -> None:
    """The others wait in silence."""
    found = the_hang(waiting(0), rank(1, ended="has ended"), waiting(2), waiting(3))
    assert found.late_ranks == (1,)
    assert cause_classes(found)[0] == "rank_died"


def test_a_rank_that_works_may_come_yet() -> None:
    """One at 100 % and the rest at 0 can be a slow job: a warning, and it says so."""
    busy = rank(1, own(40, "tokenize"), moved=True, cpu_frac=0.98, state="R", kernel="")
    found = the_hang(waiting(0), busy, waiting(2), waiting(3))
    assert found.late_ranks == (1,)
    assert found.severity == "warning"
    assert "may be slow" in texts(found)
    assert cause_classes(found)[0] == "wait_on_slow_rank_cpu_work"


@pytest.mark.parametrize(
    ("stack", "kind"),
    [
        ((call("_new_process_group_helper"), call("init_process_group"), own(9)), "start"),
        ((call("barrier"), call("init_process_group"), own(9)), "start"),
        ((call("destroy_process_group"), own(9)), "end"),
        ((call("_next_data", f"{LIBRARY}/utils/data/dataloader.py"), own(9)), "loader"),
        ((call("_save", f"{LIBRARY}/serialization.py"), own(9)), "checkpoint"),
        ((call("_shutdown", "/usr/lib/python3.11/threading.py"),), "exiting"),
        ((call("_engine_run_backward", f"{LIBRARY}/autograd/graph.py"), own(9)), "backward"),
        ((own(9, code="handle.wait()"),), "collective"),
        ((own(9, code="lock.acquire()"),), "lock"),
    ],
)
def test_what_a_stack_says(stack: tuple[object, ...], kind: str) -> None:
    """Calls into libraries are told by their functions, others by the line and the kernel."""
    assert standing(rank(0, *stack)).kind == kind  # type: ignore[arg-type]


def test_the_outermost_call_is_the_users() -> None:
    """all_gather_object is made of all_gather; the user called the former."""
    inner = rank(0, call("all_gather"), call("all_gather_object"), own(5))
    assert standing(inner).call == "all_gather_object"


def test_backward_that_computes_waits_for_nobody() -> None:
    """Its threads use the processor: it is no wait for gradients."""
    working = rank(
        0, call("_engine_run_backward", f"{LIBRARY}/autograd/graph.py"), own(9),
        process_cpu_frac=0.9,
    )  # fmt: skip
    assert standing(working).kind == "busy"


def test_ranks_that_were_seen_to_move_do_not_hang() -> None:
    """A wait of a tenth of a second is a step's."""
    assert not findings_from_stacks([waiting(n, stood_s=0.1, moved=True) for n in range(4)])


def test_a_large_message_that_passes_is_no_hang() -> None:
    """All are in one call, and their transports work."""
    assert not findings_from_stacks([waiting(n, process_cpu_frac=0.6) for n in range(4)])


def test_a_job_that_waits_for_storage_is_no_hang() -> None:
    """No rank waits for another one."""
    loader = call("_next_data", f"{LIBRARY}/utils/data/dataloader.py")
    assert not findings_from_stacks([rank(n, loader, own(7)) for n in range(4)])


def test_all_in_one_call_accuses_nobody() -> None:
    """What is stuck is the transport, or a call that only a numbered record can tell."""
    found = the_hang(*(waiting(n) for n in range(4)))
    assert found.late_ranks == ()
    assert cause_classes(found)[0] == "transport_stuck"


def test_ranks_on_other_nodes_are_said_to_be_unseen() -> None:
    """Half of the job was looked at: nobody is accused, and the network is suspected."""
    found = the_hang(*(waiting(n, world_size=8) for n in range(4)))
    assert found.late_ranks == ()
    assert "Nothing was seen of ranks 4–7" in texts(found)
    assert cause_classes(found)[0] == "network_blocked"


def test_a_start_on_hosts_that_are_not_known_may_be_the_network() -> None:
    """All wait for the process group, and nothing says that they share a host."""
    start = (call("_new_process_group_helper"), call("init_process_group"), own(9))
    found = the_hang(*(rank(n, *start, host="") for n in range(2)))
    assert cause_classes(found)[0] == "stuck_at_init"
    assert found.fixes[0].title == "See what ranks 2, 3 do on their own nodes"
    assert any("interface" in fix.title for fix in found.fixes)


def test_addresses_that_differ_are_named() -> None:
    """Ranks that look for each other in different places never meet."""
    start = (call("_new_process_group_helper"), call("init_process_group"), own(9))
    ranks = [
        rank(n, *start, environment={"MASTER_PORT": "29500" if n else "29501"}) for n in range(4)
    ]
    found = the_hang(*ranks)
    assert cause_classes(found)[0] == "env_mismatch"
    assert "29501 on rank 0" in texts(found)


def test_stacks_from_within_a_job_that_runs_must_stand_longer() -> None:
    """A recording that ends inside a wait of two seconds accuses nobody."""
    import dataclasses

    ranks = [dataclasses.replace(waiting(n), watched=None) for n in range(3)]
    asleep = dataclasses.replace(rank(3, own(15, code="time.sleep(3)")), watched=None)
    assert not findings_from_stacks([*ranks, asleep])


def test_numbers_of_the_flight_recorder_go_before_stacks(tmp_path: Path) -> None:
    """One hang, not two: its ranks from the numbered record, its line from the stacks."""
    from fixtures.flight_recorder import dump, entry, records

    group = {"0": range(3)}
    flight = records(
        {
            0: dump(groups=group, entries=[entry("0", 7)]),
            1: dump(groups=group, entries=[entry("0", 6, state="completed")]),
            2: dump(groups=group, entries=[entry("0", 7)]),
        },
        tmp_path,
    )
    exact = findings_from_flight(flight)
    asleep = rank(1, own(15, "save"), kernel="sleep", world_size=3)
    seen = findings_from_stacks([waiting(0, world_size=3), asleep, waiting(2, world_size=3)])
    (joined,) = join_hangs(exact, seen)
    assert joined.late_ranks == exact[0].late_ranks == (1,)
    assert joined.where[0].line == 15


def test_the_stack_of_the_late_rank_alone_says_what_it_does() -> None:
    """As `py-spy dump` of that one rank gives it, beside dumps of the flight recorder of all."""
    told = Finding(
        cause="hang",
        number=None,
        severity="critical",
        confidence=0.9,
        share=0.0,
        gain=None,
        title="Rank 1 did not come",
        late_ranks=(1,),
        evidence=(Evidence(text="Ranks 0, 2 wait.", source="flight-recorder"),),
    )
    asleep = rank(1, own(15, "save", "time.sleep(9)"), own(32), kernel="sleep")
    assert findings_from_stacks([asleep]) == []
    (found,) = with_stacks([told], [asleep])
    assert "Rank 1 sleeps at train.py:15 (save)" in texts(found)
    assert (found.where[0].file, found.where[0].line) == ("/job/train.py", 15)
    assert with_stacks([found], [asleep]) == [found]  # said once
    other = rank(3, own(99, "log"))
    assert with_stacks([told], [other]) == [told]  # of a rank that is not accused


def test_processes_whose_rank_nothing_names(tmp_path: Path) -> None:
    """Dumps of py-spy without a rank in their names: told by their pids, and no rank is accused."""
    for pid in (100, 101, 102, 103):
        waits = (
            "    all_reduce (torch/distributed/distributed_c10d.py:2810)\n    train (train.py:51)\n"
        )
        frames = "    save (train.py:15)\n    main (train.py:32)\n" if pid == 102 else waits
        (tmp_path / f"spy.{pid}.txt").write_text(
            f"Process {pid}: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
            f'Thread {pid} (idle): "MainThread"\n{frames}'
        )
    found = the_hang(*(read_stacks(path) for path in sorted(tmp_path.iterdir())))
    assert found.title.startswith("Process 102 did not come to all_reduce")
    assert "Processes 100, 101, 103 wait in all_reduce at train.py:51" in texts(found)
    assert "Nothing was seen" not in texts(found)
    assert found.late_ranks == () and found.ranks == ()


def test_numbers_that_differ_by_nature_accuse_nobody() -> None:
    """Each rank has its own part of the data; and a counter far ahead counts something else."""
    sizes = [waiting(n, values={"n_samples": "1001" if n == 2 else "1000"}) for n in range(4)]
    assert the_hang(*sizes).late_ranks == ()
    far = [waiting(n, values={"step": "90" if n == 2 else "20"}) for n in range(4)]
    assert the_hang(*far).late_ranks == ()


def test_a_rank_that_gets_on_meanwhile_is_no_hang() -> None:
    """It is in a collective, too, but in another one than before."""
    ranks = [waiting(0), waiting(1), waiting(2), waiting(3, stood_s=0.2, moved=True)]
    assert findings_from_stacks(ranks) == []


def test_a_rank_that_waits_for_its_loader_may_come_yet() -> None:
    """A cold cache takes seconds in jobs that go on."""
    loader = call("_next_data", f"{LIBRARY}/utils/data/dataloader.py")
    found = the_hang(waiting(0), rank(1, loader, own(20)), waiting(2), waiting(3))
    assert (found.late_ranks, found.severity) == ((1,), "warning")
    assert "waits for its data loader at train.py:20" in found.title
