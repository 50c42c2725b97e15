"""Communicators that never came up, and ranks whose calls do not match."""

from __future__ import annotations

from gpuprof.analyzers.nccl.evidence import (
    class_evidence,
    finding,
    quote,
    rank_list,
    row_evidence,
    see_what,
)
from gpuprof.commlog import CallTail, CommLog, Communicator
from gpuprof.counted import counted
from gpuprof.diagnosis import Evidence, Finding, Fix

SAME_ON_ALL_RANKS = frozenset({"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"})
"""Calls whose count must be equal on all ranks of a communicator."""

MIN_RANKS_TO_COMPARE = 3
MIN_CALLS_BEHIND = 64
BEHIND_FRAC = 0.05
"""Ranks run ahead of each other by some calls, and pipes hold back some lines; a rank that misses
this many, and this share of all, has stopped."""

MIN_STARTED = 2
"""One rank alone that started can be the only one whose output is in the log."""


def findings_from_init(log: CommLog) -> list[Finding]:
    """The first communicator that some ranks entered and that not all left."""
    for comm in log.communicators:
        if comm.size < 2:
            continue
        stuck = _stuck_ranks(log, comm)
        if stuck is None:
            continue
        late, text, classes = stuck
        line = min([*comm.started.values(), *comm.completed.values()], default=0)
        process = next(iter(comm.processes.values()), None)
        interposer = [e for e in log.events if "HAMI-core" in e.text]
        if interposer:
            classes = ["cuda_interposer_hang", *classes]
        return [
            finding(
                cause="hang",
                title=f"A communicator of {comm.size} ranks never came up",
                severity="critical",
                confidence=0.7 if late else 0.5,
                evidence=[row_evidence(log, line, process, text), class_evidence(classes)],
                fixes=_fixes(classes[0]),
                ranks=comm.ranks_seen,
                late_ranks=late,
            )
        ]
    return []


def _stuck_ranks(log: CommLog, comm: Communicator) -> tuple[tuple[int, ...], str, list[str]] | None:
    started, done = set(comm.started), set(comm.completed)
    if comm.has_start and not done and len(started) >= MIN_STARTED:
        if comm.missing:
            text = (
                f"{len(started)} of {comm.size} ranks started a communicator, "
                f"{rank_list(comm.missing)} never did"
            )
            return comm.missing, text, ["init_rank_missing"]
        text = f"All {comm.size} ranks started a communicator and none finished it"
        return (), text, ["init_hang"]
    if comm.has_start and done and started - done and len(done) > len(started - done):
        behind = tuple(sorted(started - done))
        return (
            behind,
            f"{rank_list(behind)} started a communicator and did not finish it",
            ["init_hang"],
        )
    if (
        not comm.has_start
        and done
        and comm.missing
        and len(log.processes) >= comm.size
        and len(comm.missing) <= len(done)
        and comm is log.communicators[0]
        and not any(rank in comm.ended for rank in comm.missing)
    ):
        text = (
            f"{len(done)} of {comm.size} ranks finished a communicator, "
            f"{rank_list(comm.missing)} did not"
        )
        return comm.missing, text, ["init_hang"]
    return None


def _fixes(kind: str) -> list[Fix]:
    if kind == "cuda_interposer_hang":
        return [
            Fix(
                title="Run without the library that stands between the program and CUDA",
                detail="A GPU-sharing layer is preloaded; NCCL's calls hang inside it.",
                code="env -u LD_PRELOAD …",
            )
        ]
    if kind == "init_rank_missing":
        return [
            Fix(
                title="Look at the ranks that are missing",
                detail="They died before, wait elsewhere, or were started with another world size "
                "or MASTER_ADDR.",
                code="py-spy dump --pid PID",
            )
        ]
    return [
        Fix(
            title="Check the path between the hosts",
            detail="A firewall on the data interface, or an interface that other hosts cannot "
            "reach, lets the bootstrap through and the data not.",
            code="export NCCL_SOCKET_IFNAME=eth0",
        )
    ]


def _tails(log: CommLog, comm: Communicator) -> dict[int, CallTail]:
    found: dict[int, CallTail] = {}
    owners: dict[str, int] = {}
    for other in log.communicators:
        for handle in set(other.handles.values()):
            owners[handle] = owners.get(handle, 0) + 1
    for rank, handle in comm.handles.items():
        tail = log.calls.get(handle)
        if tail is not None and owners.get(handle, 0) == 1:
            found[rank] = tail
    return found if len(set(comm.handles.values())) == len(comm.handles) else {}


def findings_from_calls(log: CommLog) -> list[Finding]:
    """Ranks that call different collectives at the same point of a communicator (COLL lines)."""
    for comm in log.communicators:
        tails = _tails(log, comm)
        if len(tails) < 2:
            continue
        shared = set.intersection(*(set(tail.recent) for tail in tails.values()))
        for number in sorted(shared):
            calls = {rank: tail.recent[number] for rank, tail in tails.items()}
            if not all(call[0] in SAME_ON_ALL_RANKS for call in calls.values()):
                continue
            if len({call[:3] for call in calls.values()}) > 1:
                return [_mismatch(log, comm, number, calls, tails)]
    return _behind(log) or _one_list(log)


def _behind(log: CommLog) -> list[Finding]:
    """Ranks whose calls stopped long before the others' of the same communicator."""
    for comm in log.communicators:
        tails = _tails(log, comm)
        if len(tails) < MIN_RANKS_TO_COMPARE or comm.ended:
            continue
        last = {rank: tail.last for rank, tail in tails.items()}
        usual = sorted(last.values())[len(last) // 2]
        behind = sorted(
            rank
            for rank, number in last.items()
            if usual - number >= max(MIN_CALLS_BEHIND, BEHIND_FRAC * usual)
        )
        if not behind or len(behind) > len(last) // 3:
            continue
        first = min(behind, key=lambda rank: last[rank])
        tail = tails[first]
        name = rank_list(behind)
        text = (
            f"{name} issued call {last[first]:#x} last, the others of this communicator of "
            f"{comm.size} ranks went on to {usual:#x}"
        )
        return [
            finding(
                cause="hang",
                title=f"{name} stopped issuing collectives".capitalize(),
                severity="critical",
                confidence=0.7,
                evidence=[
                    row_evidence(log, tail.line, tail.process, text.capitalize()),
                    class_evidence(["desync_straggler"]),
                ],
                fixes=[
                    Fix(
                        title=see_what(name),
                        detail="Its Python stack while the others wait names the line; its own log "
                        "and exit code tell whether it died.",
                        code="py-spy dump --pid PID",
                    )
                ],
                ranks=tails,
                late_ranks=behind,
            )
        ]
    return []


def _mismatch(
    log: CommLog,
    comm: Communicator,
    number: int,
    calls: dict[int, tuple[str, int, int, int, int]],
    tails: dict[int, CallTail],
) -> Finding:
    values = [call[:3] for call in calls.values()]
    common = max(set(values), key=values.count)
    odd = sorted(rank for rank, call in calls.items() if call[:3] != common)
    one = calls[odd[0]]
    text = (
        f"Call {number:#x} of a communicator of {comm.size} ranks: {rank_list(odd)} called "
        f"{one[0]} of {one[1]} elements, the others {common[0]} of {common[1]}"
    )
    return finding(
        cause="hang",
        title="Ranks issue different collectives",
        severity="critical",
        confidence=0.9,
        evidence=[
            row_evidence(log, tails[odd[0]].line, tails[odd[0]].process, text),
            class_evidence(["collective_mismatch"]),
        ],
        fixes=[
            Fix(
                title="Make every rank issue the same collectives in the same order",
                detail="A branch that depends on data or an unused parameter is the usual reason.",
                code="TORCH_DISTRIBUTED_DEBUG=DETAIL …",
            )
        ],
        ranks=calls,
        late_ranks=odd,
    )


def _one_list(log: CommLog) -> list[Finding]:
    """A hand-made extract of one rank's calls: all that can be said is what to compare it with."""
    lines = [event for event in log.events if event.level == "BARE" and "opCount " in event.text]
    if not lines or len(lines) != len(log.events) or log.communicators or log.processes:
        return []
    return [
        finding(
            cause="hang",
            title="The calls of one rank only: compare them with the other ranks'",
            severity="info",
            confidence=0.2,
            evidence=[
                Evidence(
                    text=f"{counted(len(lines), 'call')} without rank or communicator, the first"
                    f" one {quote(lines[0].text)}. If another rank's list differs in function or"
                    " count at the same opCount, the program issues different collectives.",
                    value=float(lines[0].line),
                    unit="line",
                    source="nccl-log",
                ),
                class_evidence(["collective_mismatch"]),
            ],
            fixes=[
                Fix(
                    title="Give the whole log of all ranks",
                    detail="gpuprof compares the calls of the ranks by communicator and opCount.",
                    code="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL NCCL_DEBUG_FILE=nccl.%h.%p",
                )
            ],
        )
    ]
