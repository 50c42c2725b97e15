"""Jobs that stop before NCCL starts: PyTorch's store or torchrun's rendezvous waits for ranks.

The texts are those of `torch.distributed` 1.8 to 2.13: the store's server counts who joined, its
clients name the address that they cannot reach, the barrier names the rank that waits, torchrun's
rendezvous says only that it gave up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpuprof.analyzers.nccl.evidence import class_evidence, finding, line_evidence, rank_list
from gpuprof.commlog import CommLog, Event
from gpuprof.counted import counted
from gpuprof.diagnosis import Evidence, Finding, Fix

JOINED = re.compile(
    r"Timed out after \d+ seconds waiting for (?:clients|workers)\. "
    r"(?P<joined>\d{1,6})/(?P<size>\d{1,6}) (?:clients|workers) joined"
)
BARRIER = re.compile(
    r"Timed out initializing process group in store based barrier on rank:? (?P<rank>\d{1,6}),"
    r".*?world_size=(?P<size>\d{1,6}), (?:worker_count|num_workers_joined)=(?P<joined>\d{1,6})"
)
CLIENT = re.compile(
    r"client socket has timed out after \S+ while trying to connect to "
    r"\((?P<host>[^,\s)]{1,255}), (?P<port>\d{1,5})\)"
)
FAILED_CLIENT = re.compile(
    r"TCP client failed to connect/validate to host (?P<host>\S{1,255}):(?P<port>\d{1,5}) - timed"
)
IDENTITY = re.compile(r"retrieving ncclUniqueId from \[(?P<root>\d{1,6})\].*?got error")
ELASTIC = re.compile(r"\bRendezvous(?:Timeout|Connection)Error\b")
TAKEN = re.compile(r"server socket has failed to listen on any local network address")

LOOPBACK = re.compile(r"localhost$|127\.|::1$|\[::1\]$", re.IGNORECASE)


def findings_from_rendezvous(log: CommLog) -> list[Finding]:
    """The rendezvous that failed, if one did: who joined, who did not, what to compare."""
    taken = [event for event in log.events if TAKEN.search(event.text)]
    waits = [
        event
        for event in log.events
        if any(text.search(event.text) for text in (JOINED, BARRIER, CLIENT, FAILED_CLIENT))
    ]
    if taken:
        return [_taken(log, taken)]
    counts = [event for event in waits if JOINED.search(event.text) or BARRIER.search(event.text)]
    others = [
        event for event in log.events if IDENTITY.search(event.text) or ELASTIC.search(event.text)
    ]
    if not waits and not others:
        return []
    # The server's count says most; a client's time-out says more than an exception's bare name.
    event = (counts or waits or sorted(others, key=lambda e: IDENTITY.search(e.text) is None))[0]
    joined, late, told = _who(waits)
    reached, where = _addresses(waits)
    evidence = [line_evidence(log, event), *told, *reached]
    root = next((m for e in others if (m := IDENTITY.search(e.text))), None)
    if root is not None and not waits:
        late = {int(root["root"])}
        evidence.append(
            Evidence(
                text=f"The others wait for NCCL's identity from {rank_list(late)}, which did not"
                " come to its first collective.",
                source="nccl-log",
            )
        )
    if not told and not reached and root is None:
        evidence.append(
            Evidence(
                text="The line does not say how many joined; the logs of the other hosts tell who"
                " started.",
                source="nccl-log",
            )
        )
    evidence.append(class_evidence(["init_rank_missing"]))
    return [
        finding(
            cause="hang",
            title="The ranks did not find each other: the job stopped before NCCL started",
            severity="critical",
            confidence=0.85 if waits else 0.6,
            evidence=evidence,
            fixes=_fixes(where),
            ranks=joined | late,
            late_ranks=late,
        )
    ]


def _who(waits: list[Event]) -> tuple[set[int], set[int], list[Evidence]]:
    """Ranks that joined, ranks that did not, and the sentence that says so.

    A rank is named only where the lines name it. The others follow by exclusion only where as many
    ranks wrote that they wait as the store counted.
    """
    counted_at: tuple[int, int] | None = None
    joined: set[int] = set()
    for event in waits:
        match = BARRIER.search(event.text) or JOINED.search(event.text)
        if match is None:
            continue
        if match.re is BARRIER:
            joined.add(int(match["rank"]))
        number, size = int(match["joined"]), int(match["size"])
        if counted_at is None or number > counted_at[0]:
            counted_at = (number, size)
    unreached = {
        event.rank for event in waits if event.rank is not None and _client(event) is not None
    }
    late = unreached - joined
    if counted_at is None:
        return joined, late, []
    number, size = counted_at
    if not late and joined and len(joined) == number < size:
        late = set(range(size)) - joined
    missing = max(size - number, 0)
    text = f"{number} of {counted(size, 'process', 'processes')} joined, {missing} did not"
    if late and len(late) <= missing:
        text += f": {rank_list(late)}"
    return joined, late, [Evidence(text=f"{text}.", value=float(missing), source="nccl-log")]


def _client(event: Event) -> re.Match[str] | None:
    return CLIENT.search(event.text) or FAILED_CLIENT.search(event.text)


def _addresses(waits: list[Event]) -> tuple[list[Evidence], tuple[str, str] | None]:
    """What the clients tried to reach, in sentences, and the first such address."""
    places: dict[tuple[str, str], None] = {}
    for event in waits:
        match = _client(event)
        if match is not None:
            places[match["host"].strip("[]"), match["port"]] = None
    if not places:
        return [], None
    shown = " and ".join(f"{host}, port {port}" for host, port in list(places)[:3])
    sentences = [f"No answer came from {shown}."]
    if len(places) > 1:
        sentences.append("The processes try different addresses, so they cannot meet.")
    if any(LOOPBACK.match(host) for host, _ in places):
        sentences.append("A loopback address reaches only processes of the same host.")
    return [Evidence(text=text, source="nccl-log") for text in sentences], next(iter(places))


def _fixes(where: tuple[str, str] | None) -> list[Fix]:
    host, port = where if where is not None else ("$MASTER_ADDR", "$MASTER_PORT")
    return [
        Fix(
            title="Compare what every rank was started with",
            detail="MASTER_ADDR and MASTER_PORT (or --rdzv-endpoint and --rdzv-id) must be the same"
            " everywhere, WORLD_SIZE (--nnodes times --nproc-per-node) the number of processes that"
            " really start. A host on which fewer devices are visible starts fewer.",
            code="env | grep -E 'MASTER_|WORLD_SIZE|RANK|CUDA_VISIBLE_DEVICES'; nvidia-smi -L",
        ),
        Fix(
            title="Try the address from the hosts that did not join",
            detail="A firewall, a name that resolves to another interface, or a first rank that"
            " started late or died gives no answer; the missing ranks' own logs tell which.",
            code=f"nc -zv {host} {port}",
        ),
    ]


def _taken(log: CommLog, taken: Iterable[Event]) -> Finding:
    return finding(
        cause="nccl-config",
        title="The store's port could not be opened: another process holds it",
        severity="critical",
        confidence=0.8,
        evidence=[line_evidence(log, next(iter(taken))), class_evidence(["store_port_taken"])],
        fixes=[
            Fix(
                title="Give each job of a host its own port, and end what is left of the last job",
                detail="MASTER_PORT (torchrun: --master-port, or --rdzv-endpoint with port 0) must"
                " be free on the first host.",
                code="ss -ltnp | grep $MASTER_PORT",
            )
        ],
    )
