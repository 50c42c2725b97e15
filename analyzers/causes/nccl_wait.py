"""The device waits in communication.

What it finds: time in which a collective or a send or receive runs on the device and no other
kernel does, and time in which the host waits inside a collective of its own (gloo, mpi).

Why it costs: communication beside computation is free; alone it is part of the step. A collective
also lasts from the moment this rank arrives until the last rank has come and the data has passed:
most of a long one is often waiting for another rank.

How it is measured: the share is exposed communication: collectives minus all kernels beside them,
and idle time until a collective that is launched already. With the traces of several ranks it is
split: the shortest duration of a collective over its ranks is the transfer, what another rank
spends above that is waiting, and the rank that waits least is the one that came last. The gain is
the replay of the step with communication taking no time. Where a late rank makes the others wait,
it is their replay with the waits shortened to those that would remain if the late ranks came with
the rest.

How to fix: more overlap (bucket sizes, prefetching), fewer bytes (compression, sharding), the right
transport; when a rank is late, what makes that rank late.

Limits: from one rank alone waiting can't be told from transfer. A host that sets the pace takes up
what faster communication would free; then it is ruled out with that reason. On a run whose device
is the CPU, collectives run on threads of their own, and only those that the training thread is seen
to wait for count, or those that several ranks show. Sends, receives and broadcasts are counted but
not split.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.causes.base import (
    LEAST_GAIN,
    MOST_WINDOWS,
    Cause,
    RunView,
    Verdict,
    confidence,
    finding,
    too_little,
)
from gpuprof.analyzers.collective_kinds import CollectiveKind
from gpuprof.analyzers.exposed import ExposedCollectives, exposed_collectives, waited_frac
from gpuprof.analyzers.wording import percent
from gpuprof.diagnosis import Evidence, Fix, Gain, NotJudged, RuledOut, Window

ID = "nccl-wait"

BUCKETS = ("communication", "communication_host")

MOST_KINDS = 3
"""Lines of the table of collectives that a reader looks at."""

SMALL_BYTES = 4 << 20
"""Below some MB the latency of a collective (15 to 40 µs over NVLink and InfiniBand) is as long as
its transfer: fewer and larger ones are faster."""

_BUS_FACTOR = {
    CollectiveKind.ALL_REDUCE: 2,
    CollectiveKind.ALL_GATHER: 1,
    CollectiveKind.REDUCE_SCATTER: 1,
    CollectiveKind.ALL_TO_ALL: 1,
}
"""How often (n−1)/n of the message passes a link (nccl-tests' definition of bus bandwidth)."""

_NAMES = {
    int(kind): "collective of unknown kind"
    if kind == CollectiveKind.UNKNOWN
    else "send and receive"
    if kind == CollectiveKind.SEND_RECV
    else kind.name.lower().replace("_", "-")
    for kind in CollectiveKind
}


def judge(run: RunView) -> Verdict:
    """Judges cause 4."""
    return _alone(run)


def _alone(run: RunView) -> Verdict:
    """What one rank shows, or several that have nothing in common to compare."""
    share = run.share(*BUCKETS)
    tables = [exposed_collectives(rank) for rank in run.ranks]
    if not share and not any(len(table) for table in tables):
        return RuledOut(cause=ID, why="no collective ran in the recorded steps")
    if share < run.named_from:
        return RuledOut(cause=ID, why=_hidden(run, tables, share))
    if not run.has_device:
        waited = float(np.mean([waited_frac(rank) for rank in run.ranks]))
        if waited < run.named_from:
            return NotJudged(
                cause=ID,
                missing=f"for {percent(share)} of the step a collective is under way and nothing is"
                " computed, but it runs on a thread of its own, and the recording of one rank does"
                " not show whether the training thread waits for it, or for which rank",
                command="record all ranks and analyze them together: gpuprof analyze TRACES…",
            )
    gain = run.price("communication")
    if gain is not None and gain.reduction < LEAST_GAIN:
        return RuledOut(cause=ID, why=_other_work_comes_out(share, gain))
    worst = max(run.ranks, key=lambda rank: run.share_of(rank, *BUCKETS))
    table = tables[run.ranks.index(worst)]
    return finding(
        ID,
        f"Communication that nothing hides takes {percent(share)} of each step",
        share=share,
        gain=_explained(gain),
        confidence=confidence(run, share, gain, certain=0.93),
        evidence=[*_evidence(run, worst, table, share), _one_rank_only(run)],
        fixes=_fixes(run, table, ()),
        ranks=run.ranks_with(*BUCKETS),
    )


def _other_work_comes_out(share: float, gain: Gain) -> str:
    return (
        f"communication that nothing hides holds {percent(share)} of the step, but if it took no"
        f" time the step would be only {percent(gain.reduction)} shorter: the host, or other work,"
        " sets the pace"
    )


def _hidden(run: RunView, tables: list[ExposedCollectives], share: float) -> str:
    text = too_little("communication that nothing hides", share, run)
    ran = sum(table.running_ns for table in tables)
    if ran:
        beside = 1.0 - sum(table.exposed_total_ns for table in tables) / ran
        text += f" ({percent(max(beside, 0.0))} of all communication runs beside other work)"
    return text


def _explained(gain: Gain | None) -> Gain | None:
    if gain is None:
        return None
    return Gain(
        step_ms=gain.step_ms,
        reduction=gain.reduction,
        low=gain.low,
        high=gain.high,
        how="the step replayed with communication taking no time: the most that overlap can do",
    )


def _evidence(
    run: RunView, rank: RankAccount, table: ExposedCollectives, share: float
) -> list[Evidence]:
    step_ms = run.step_ms()
    of = f" of rank {rank.rank}" if len(run.ranks) > 1 else ""
    device = "the device" if run.has_device else "training"
    evidence = [
        Evidence(
            text=f"For {share * step_ms:.1f} ms of each {step_ms:.1f} ms step {device} only"
            " communicates.",
            value=round(share, 4),
            unit="share of step",
            windows=_longest(run, rank, table),
        )
    ]
    if table.running_ns:
        beside = 1.0 - table.exposed_total_ns / table.running_ns
        evidence.append(
            Evidence(
                text=f"{percent(max(beside, 0.0))} of the communication{of} runs beside other"
                " work.",
                value=round(beside, 4),
                unit="share of communication",
            )
        )
    host = run.share("communication_host")
    if host > 0.1 * share:
        evidence.append(
            Evidence(
                text=f"{percent(host)} of the step passes in collectives of the host.",
                value=round(host, 4),
                unit="share of step",
            )
        )
    return evidence + _largest(rank, table)


def _largest(rank: RankAccount, table: ExposedCollectives) -> list[Evidence]:
    """The kinds and sizes of collectives with most exposed time."""
    steps = max(int(np.count_nonzero(rank.main.steps.keep)), 1)
    found, size = table.collectives, table.bytes
    key = np.stack((found.kind[table.mine].astype(np.int64), size))
    kinds, which = np.unique(key, axis=1, return_inverse=True)
    which = which.reshape(-1)
    exposed = np.bincount(which, weights=table.exposed_ns, minlength=kinds.shape[1])
    lines = []
    for i in np.argsort(-exposed)[:MOST_KINDS].tolist():
        mine = which == i
        if exposed[i] < 0.1 * max(table.exposed_total_ns, 1):
            continue
        duration = found.duration_ns[table.mine][mine]
        each = f" of {_size(int(kinds[1, i]))}" if kinds[1, i] > 0 else ""
        text = (
            f"{_count(mine.sum() / steps)} × {_NAMES[int(kinds[0, i])]}{each} a step:"
            f" {exposed[i] / steps / 1e6:.2f} ms alone of {duration.sum() / steps / 1e6:.2f} ms"
        )
        text += _bandwidth(table, mine)
        lines.append(
            Evidence(
                text=text + ".", value=round(float(exposed[i]) / steps / 1e6, 3), unit="ms per step"
            )
        )
    return lines


def _bandwidth(table: ExposedCollectives, mine: NDArray[np.bool_]) -> str:
    """The bus bandwidth of the fastest of some equal collectives: the one that waited least."""
    found = table.collectives
    chosen = table.mine[mine]
    best = int(chosen[np.argmin(found.duration_ns[chosen])])
    size = int(table.bytes[mine][0])
    n_ranks = int(found.group_size[best])
    factor = _BUS_FACTOR.get(CollectiveKind(int(found.kind[best])))
    duration = int(found.duration_ns[best])
    if size < SMALL_BYTES or n_ranks < 2 or factor is None or duration <= 0:
        return ""
    wire = 2 * (n_ranks - 1) / n_ranks if factor == 2 else (n_ranks - 1) / n_ranks
    return f"; the fastest reaches {size * wire / duration:.3g} GB/s of bus bandwidth"


def _one_rank_only(run: RunView) -> Evidence:
    return Evidence(
        text="A collective lasts until the last rank has come and the data has passed. Which of the"
        " two takes the time can't be told without the other ranks' traces.",
        unit="",
    )


def _size(n_bytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{n_bytes:.0f} bytes"


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 9.95 else f"{number:.2g}"


def _longest(run: RunView, rank: RankAccount, table: ExposedCollectives) -> tuple[Window, ...]:
    found = table.collectives
    longest = table.mine[np.argsort(-table.exposed_ns)[:MOST_WINDOWS]].tolist()
    return tuple(run.window(rank, int(found.start_ns[i]), int(found.end_ns[i])) for i in longest)


def named_ranks(ranks: tuple[int, ...]) -> str:
    """Ranks as text: "rank 7", "ranks 0 and 6", "ranks 1, 2 and 5"."""
    words = [str(rank) for rank in ranks]
    if len(words) == 1:
        return f"rank {words[0]}"
    return f"ranks {', '.join(words[:-1])} and {words[-1]}"


def _fixes(run: RunView, table: ExposedCollectives, late_ranks: tuple[int, ...]) -> list[Fix]:
    facts = run.facts
    small = table.mean_bytes is not None and table.mean_bytes < SMALL_BYTES
    fixes: list[Fix] = []
    if late_ranks:
        one = len(late_ranks) == 1
        fixes.append(
            Fix(
                title=f"Find what makes {named_ranks(late_ranks)} late",
                detail="The others wait in their collectives, and nothing about communication"
                f" itself will help them. The account of {'that rank' if one else 'those ranks'}"
                " says what holds it up: its data, its host code, its share of the work, its"
                " clocks. What it is found to be held up by is the first thing to mend.",
                cost="none",
            )
        )
    if not run.has_device:
        return fixes or [_fewer_and_larger(small)]
    if table.main_kind == CollectiveKind.ALL_TO_ALL:
        fixes.append(_exchange())
    elif facts.ddp:
        fixes.append(_buckets(small))
    elif facts.fsdp:
        fixes.append(_prefetch())
    else:
        fixes.append(_fewer_and_larger(small))
    reduces = table.main_kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.UNKNOWN)
    if facts.ddp and reduces and facts.backward and facts.dtype in ("fp32", "tf32", ""):
        fixes.append(_compress())
    fixes.append(_transport(facts.rocm))
    return fixes


def _buckets(small: bool) -> Fix:
    return Fix(
        title="Let gradients travel while the backward pass still computes",
        detail="DistributedDataParallel sends a bucket as soon as its gradients are there. "
        + (
            "The recorded messages are small: larger buckets mean fewer of them."
            if small
            else "Smaller buckets start earlier, larger ones use the link better; only trying tells"
            " which is missing here. The last bucket can never be hidden."
        ),
        code="model = DistributedDataParallel(\n    model,\n"
        f"    bucket_cap_mb={100 if small else 50},  # 25 by default\n"
        "    gradient_as_bucket_view=True,\n"
        "    static_graph=True,  # if the same parameters are used in every step\n)",
        cost="memory for the buckets",
    )


def _prefetch() -> Fix:
    return Fix(
        title="Gather the next layer's parameters while this one computes",
        detail="FSDP can fetch one layer ahead in both passes. limit_all_gathers=False lets it run"
        " further ahead; sharding inside a node only (HYBRID_SHARD) sends less between nodes.",
        code="FullyShardedDataParallel(\n    model,\n"
        "    backward_prefetch=BackwardPrefetch.BACKWARD_PRE,\n    forward_prefetch=True,\n"
        "    limit_all_gathers=True,  # False if memory allows it\n"
        "    sharding_strategy=ShardingStrategy.HYBRID_SHARD,\n)",
        cost="memory for one more layer; a copy of the state per node",
    )


def _exchange() -> Fix:
    return Fix(
        title="Exchange beside the dense part of the model",
        detail="Embeddings and experts are exchanged all to all, and nothing can use the result"
        " before it is there. Start the exchange first and compute what does not need it (the"
        " bottom MLP, the shared experts, the other half of a split batch) meanwhile; send it in"
        " fp16 or bf16.",
        code="work = torch.distributed.all_to_all_single(received, sent, async_op=True)\n"
        "dense = bottom_mlp(x)\n"
        "work.wait()",
        cost="a second batch in flight",
    )


def _fewer_and_larger(small: bool) -> Fix:
    return Fix(
        title="Put small messages together and start them earlier"
        if small
        else "Start collectives earlier and wait for them later",
        detail="With async_op=True the collective runs beside the kernels that do not need its"
        " result. "
        + (
            "Each of the recorded messages costs mostly latency: send tensors as one."
            if small
            else "Tensor parallelism has little to hide behind: keep its groups inside one node,"
            " and overlap it with the other half of a split batch."
        ),
        code="work = torch.distributed.all_reduce(flat, async_op=True)  # one flat tensor\n"
        "...                                                       # what does not need it\n"
        "work.wait()",
        cost="buffers that live longer",
    )


def _compress() -> Fix:
    return Fix(
        title="Send gradients in bf16",
        detail="A communication hook halves the bytes; the optimizer still works in fp32.",
        code="from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
        "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
        cost="rounding of gradients; needs NCCL 2.10 or newer",
    )


def _transport(rocm: bool) -> Fix:
    library = "RCCL" if rocm else "NCCL"
    return Fix(
        title="Check which way the data takes",
        detail=f"{library} says it at start: a pair of GPUs in one machine over SHM instead of P2P,"
        " or nodes over NET/Socket instead of InfiniBand or EFA, is five to twenty times slower."
        " gpuprof reads the log.",
        code="NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.%h.%p.log torchrun … train.py\n"
        "gpuprof analyze nccl.*.log TRACES…",
        cost="one short run",
    )


CAUSE = Cause(
    id=ID,
    title="Exposed communication",
    judge=judge,
    docs=__doc__ or "",
    removes=("communication",),
)
