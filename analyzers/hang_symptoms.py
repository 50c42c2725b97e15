"""What kinds of hang there are, by what can be seen of them, and what usually is behind each.

The table is ordered: the first row that fits names the reasons and the steps. None of the reasons
is proven by the symptom; the finding says what was seen, and this what to look at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from gpuprof.analyzers.nccl.evidence import rank_list
from gpuprof.analyzers.standing import Standing
from gpuprof.diagnosis import Fix

SAME_EVERYWHERE = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_ALGO",
    "NCCL_PROTO",
)
"""Variables that all ranks of a job share, or do not find each other."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A hang as it was seen. late: ranks that the others wait for. unseen: ranks of which nothing
    was recorded."""

    waiting: Sequence[Standing]
    late: Sequence[Standing]
    unseen: Collection[int]
    hosts: int
    world_size: int
    differing: Mapping[str, Mapping[str, Sequence[int]]]

    @property
    def is_start(self) -> bool:
        return any(one.kind == "start" for one in self.waiting)

    @property
    def is_one_busy(self) -> bool:
        return bool(self.late) and all(one.kind == "busy" for one in self.late)


@dataclass(frozen=True, slots=True)
class Symptom:
    """A row of the table. id: class of the cause. reasons: one sentence."""

    id: str
    reasons: str
    fixes: tuple[Fix, ...]


def differing_settings(
    found: Mapping[int, Mapping[str, str]],
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Variables in which ranks differ that should not: name -> value -> ranks.

    Args:
        found: rank -> its variables; ranks without any are left out.
    """
    result: dict[str, dict[str, tuple[int, ...]]] = {}
    known = {rank: values for rank, values in found.items() if values}
    for name in SAME_EVERYWHERE:
        by_value: dict[str, list[int]] = {}
        for rank, values in sorted(known.items()):
            by_value.setdefault(values.get(name, "(not set)"), []).append(rank)
        if len(by_value) > 1:
            result[name] = {value: tuple(ranks) for value, ranks in by_value.items()}
    return result


def symptom_of(picture: Picture) -> Symptom:
    """The first row of the table that fits."""
    return next(make(picture) for fits, make in _TABLE if fits(picture))


def _ended(picture: Picture) -> Symptom:
    names = rank_list(one.rank for one in picture.late if one.kind == "ended")
    return Symptom(
        "rank_died",
        "When one rank ends, the others wait for it in silence until their time-out.",
        (
            Fix(
                title=f"Find out how {names} ended",
                detail="Its own log and exit status, and the kernel's log (out of memory, Xid).",
                code="dmesg -T | grep -iE 'xid|oom|killed process'",
            ),
            Fix(
                title="End all ranks when one ends",
                detail="torchrun does so when a rank ends with an error; a rank that ends with"
                " status 0, and ranks that a shell starts, leave the others waiting.",
                code="torchrun --nproc-per-node … train.py",
            ),
        ),
    )


def _exiting(picture: Picture) -> Symptom:
    names = rank_list(one.rank for one in picture.late if one.kind == "exiting")
    return Symptom(
        "rank_died",
        "Its main program has ended, by an exception or at its end, and a thread that is no daemon"
        " keeps the process and its connections alive.",
        (
            Fix(
                title=f"Read the end of the log of {names}",
                detail="An exception that was printed there is the cause.",
            ),
            Fix(
                title="Let the process end with its main program",
                detail="Make helper threads daemons, or end with os._exit after an exception.",
                code="threading.Thread(…, daemon=True)",
            ),
        ),
    )


def _settings(picture: Picture) -> Symptom:
    name, values = next(iter(picture.differing.items()))
    parts = [f"{value} on {rank_list(ranks)}" for value, ranks in list(values.items())[:3]]
    return Symptom(
        "env_mismatch",
        f"{name} differs between ranks: {', '.join(parts)}.",
        (
            Fix(
                title=f"Give all ranks the same {name}",
                detail="Ranks that look for each other in different places never meet.",
                code=f"export {name}=…",
            ),
        ),
    )


def _start(picture: Picture) -> Symptom:
    return Symptom(
        "stuck_at_init",
        "A process group starts when all its ranks have come: a rank that never starts, another"
        " address, or devices that differ from rank to rank keep it waiting.",
        (
            Fix(
                title="See that every rank starts, and finds the first one",
                detail="As many processes as WORLD_SIZE says, each with its own RANK; MASTER_ADDR"
                " an address that all nodes reach, MASTER_PORT open and free.",
                code="MASTER_ADDR=… MASTER_PORT=… WORLD_SIZE=… RANK=…",
            ),
            Fix(
                title="Compare the devices that ranks see",
                detail="CUDA_VISIBLE_DEVICES and set_device(LOCAL_RANK): two ranks on one device,"
                " or one that is not there, end in the same silence.",
                code="torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
            ),
            *(_network(picture).fixes if picture.hosts != 1 else ()),
        ),
    )


def _busy(picture: Picture) -> Symptom:
    names = rank_list(one.rank for one in picture.late)
    return Symptom(
        "wait_on_slow_rank_cpu_work",
        f"One works and the rest rest: {names} has more to do (more data, a stage of the pipeline,"
        " work that only this rank does), or goes another way through the program.",
        (
            Fix(
                title=f"Share out what {names} does, or do it beside the loop",
                detail="Work that one rank does alone (saving, evaluating, tokenizing) makes all"
                " others wait; give every rank as many batches.",
                code="DistributedSampler(…, drop_last=True)",
            ),
            Fix(
                title="Raise the time-out if the work is meant to be that long",
                detail="A sporadic time-out in a collective after such work is a limit that is too"
                " short.",
                code="dist.init_process_group(…, timeout=timedelta(hours=1))",
            ),
        ),
    )


def _stopped(picture: Picture) -> Symptom:
    names = rank_list(one.rank for one in picture.late)
    return Symptom(
        "rank_did_not_come",
        "A signal or a debugger holds it.",
        (Fix(title=f"Let {names} go on", detail="", code="kill -CONT PID"),),
    )


def _away(picture: Picture) -> Symptom:
    names = rank_list(one.rank for one in picture.late)
    return Symptom(
        "rank_did_not_come",
        "It goes on, and the others with it, when what it waits for comes.",
        (
            Fix(
                title=f"End what {names} waits for, or give it a time-out",
                detail="A call that only one rank makes between two collectives stops all ranks.",
            ),
            Fix(
                title="Raise the collectives' time-out if the wait is meant to be that long",
                detail="Else the watchdog ends the job before it is over.",
                code="dist.init_process_group(…, timeout=timedelta(hours=1))",
            ),
        ),
    )


def _diverged(picture: Picture) -> Symptom:
    return Symptom(
        "collective_mismatch",
        "All ranks wait, and not in the same call: one of them has left out a collective, or made"
        " one that the others do not make.",
        (
            Fix(
                title="Make every rank issue the same collectives in the same order",
                detail="A branch that depends on the rank or on data, fewer batches on one rank, or"
                " parameters without a gradient on one of them are the usual reasons.",
                code="TORCH_DISTRIBUTED_DEBUG=DETAIL …",
            ),
            Fix(
                title="For parameters that some batches do not use",
                detail="Else their gradients are waited for, and what they keep alive grows.",
                code="DistributedDataParallel(model, find_unused_parameters=True)",
            ),
        ),
    )


def _network(picture: Picture) -> Symptom:
    way = "the interface that was chosen, a firewall, a port that is closed."
    return Symptom(
        "network_blocked",
        f"A rank that was not seen did not come, or the way between the nodes is at fault: {way}"
        if picture.unseen
        else f"What works on one node and stands on several is the way between them: {way}",
        (
            Fix(
                title="Name the interface that leads to the other nodes",
                detail="Bridges of containers and management networks come first on many nodes.",
                code="NCCL_SOCKET_IFNAME=… GLOO_SOCKET_IFNAME=…",
            ),
            Fix(
                title="Open all TCP ports between the nodes",
                detail="MASTER_PORT alone is not enough: each pair of ranks uses ports of its own.",
                code="nc -zv OTHER_NODE PORT",
            ),
            Fix(
                title="Let the library say where it stops",
                detail="gpuprof analyze reads what it prints.",
                code="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,NET",
            ),
        ),
    )


def _transport(picture: Picture) -> Symptom:
    return Symptom(
        "transport_stuck",
        "All ranks are there and the data do not come: the transport between them, or a rank that"
        " is one call ahead of the others in the same line.",
        (
            Fix(
                title="Record the flight recorder of all ranks",
                detail="It numbers the calls, and so tells a rank that left one out.",
                code="TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1",
            ),
            Fix(
                title="On GPUs: try without direct access between them",
                detail="Access control of PCIe (ACS) and an IOMMU let it stand without a word.",
                code="NCCL_P2P_DISABLE=1",
            ),
        ),
    )


def _has(kind: str) -> Callable[[Picture], bool]:
    return lambda picture: any(one.kind == kind for one in picture.late)


_TABLE: tuple[tuple[Callable[[Picture], bool], Callable[[Picture], Symptom]], ...] = (
    (_has("ended"), _ended),
    (_has("exiting"), _exiting),
    (lambda p: bool(p.differing), _settings),
    (lambda p: p.is_start, _start),
    (lambda p: p.is_one_busy, _busy),
    (_has("stopped"), _stopped),
    (_has("debugger"), _stopped),
    (lambda p: any(not one.waits for one in p.late), _away),
    (lambda p: bool(p.late), _diverged),
    (lambda p: p.hosts > 1 or bool(p.unseen), _network),
    (lambda p: True, _transport),
)
