"""What to do about exposed communication, by what the run does already and what its ranks show."""

from __future__ import annotations

from collections.abc import Sequence

from gpuprof.analyzers.collective_kinds import CollectiveKind
from gpuprof.analyzers.exposed import ExposedCollectives
from gpuprof.analyzers.facts import RunFacts
from gpuprof.diagnosis import Fix

SMALL_BYTES = 4 << 20
"""Below some MB the latency of a collective (15 to 40 µs over NVLink and InfiniBand) is as long as
its transfer: fewer and larger ones are faster."""


def named_ranks(ranks: tuple[int, ...]) -> str:
    """Ranks as text: "rank 7", "ranks 0 and 6", "ranks 1, 2 and 5"."""
    words = [str(rank) for rank in ranks]
    if len(words) == 1:
        return f"rank {words[0]}"
    return f"ranks {', '.join(words[:-1])} and {words[-1]}"


def communication_fixes(
    facts: RunFacts,
    table: ExposedCollectives,
    *,
    late_ranks: tuple[int, ...] = (),
    known: Sequence[Fix] = (),
    waits: bool = False,
    transfers: bool = True,
    on_device: bool = True,
) -> list[Fix]:
    """Fixes in the order in which to try them.

    Args:
        facts: What the run does already.
        table: The collectives of the rank that they hold up most.
        late_ranks: Ranks that make the others wait.
        known: What to do about what makes them late, where that is known.
        waits: Most of the time is waiting for ranks of which none is always late.
        transfers: The transfer itself takes enough to be worth a change.
        on_device: Collectives run on the device, not on threads of the host.
    """
    fixes: list[Fix] = []
    if late_ranks:
        fixes += known or [_mend_late(late_ranks)]
    elif waits:
        fixes.append(_even_out())
    if not transfers and fixes:
        return fixes
    small = table.mean_bytes is not None and table.mean_bytes < SMALL_BYTES
    if table.main_kind == CollectiveKind.ALL_TO_ALL:
        fixes.append(_exchange())
    elif facts.ddp:
        fixes.append(_buckets(small))
    elif facts.fsdp:
        fixes.append(_prefetch(fully_shard=facts.fully_shard))
    else:
        fixes.append(_fewer_and_larger(small))
    reduces = table.main_kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.UNKNOWN)
    if facts.ddp and reduces and facts.backward and facts.dtype in ("fp32", "tf32", ""):
        fixes.append(_compress())
    if on_device:
        fixes.append(_transport(facts.rocm))
    return fixes


def _mend_late(late_ranks: tuple[int, ...]) -> Fix:
    those = "that rank" if len(late_ranks) == 1 else "those ranks"
    return Fix(
        title=f"Find what makes {named_ranks(late_ranks)} late",
        detail="The others wait in their collectives, and faster communication will not help them."
        f" The account of {those} says what to mend: its data, its host code, its share of the"
        " work, its clocks.",
        cost="none",
    )


def _even_out() -> Fix:
    return Fix(
        title="Let all ranks arrive together",
        detail="Ranks wait for each other, and it is another one each time. Usual reasons: samples"
        " of different length (sort them into batches of equal work), garbage collection at"
        " different times, a loader that now and then is late.",
        code="gc.collect(); gc.freeze(); gc.disable()   # before the loop\n"
        "if step % 1000 == 0:\n"
        "    gc.collect()                          # on all ranks in the same step",
        cost="none",
    )


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


def _prefetch(*, fully_shard: bool) -> Fix:
    title = "Gather the next layer's parameters while this one computes"
    cost = "memory for one more layer; a copy of the state per node"
    if fully_shard:
        return Fix(
            title=title,
            detail="fully_shard can be told which layers to fetch ahead in each pass; a mesh of two"
            " dimensions, replicated between nodes and sharded inside them, sends less between"
            " nodes.",
            code="mesh = init_device_mesh(\n"
            '    "cuda", (nodes, gpus_per_node), mesh_dim_names=("replicate", "shard"))\n'
            "fully_shard(layer, mesh=mesh)                      # each layer, then the model\n"
            "for layer, following in itertools.pairwise(layers):\n"
            "    layer.set_modules_to_forward_prefetch([following])\n"
            "    following.set_modules_to_backward_prefetch([layer])",
            cost=cost,
        )
    return Fix(
        title=title,
        detail="FSDP can fetch one layer ahead in both passes. limit_all_gathers=False lets it run"
        " further ahead; sharding inside a node only (HYBRID_SHARD) sends less between nodes.",
        code="FullyShardedDataParallel(\n    model,\n"
        "    backward_prefetch=BackwardPrefetch.BACKWARD_PRE,\n    forward_prefetch=True,\n"
        "    limit_all_gathers=True,  # False if memory allows it\n"
        "    sharding_strategy=ShardingStrategy.HYBRID_SHARD,\n)",
        cost=cost,
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
