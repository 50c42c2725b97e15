"""What a training step must communicate, by its form of parallelism, and what that takes at least.

Volumes are those of the usual implementations (S: bytes of the parameters, or of their gradients;
N: ranks that share them):

    data parallel          all-reduce of the gradients                    2 S (N - 1) / N
    ZeRO 1 and 2           reduce-scatter, then all-gather                2 S (N - 1) / N
    ZeRO 3, FSDP           all-gather twice, reduce-scatter               3 S (N - 1) / N
    hybrid shards (HSDP)   the same inside a node, all-reduce of shards between nodes
    tensor parallel        four all-reduces of the activations a layer (two forward, two backward)
    expert parallel        four all-to-alls of the routed tokens a layer
    pipeline parallel      two sends of the activations a micro-batch and stage boundary

Times are of a call on its own: what overlaps with computing costs less, contention more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpuprof.analyzers.collective_kinds import CollectiveKind
from gpuprof.analyzers.fabric import Estimate, Fabric, estimate

Strategy = Literal["ddp", "zero1", "zero2", "fsdp", "hsdp"]

BUCKET_BYTES = 25 << 20
"""PyTorch's DistributedDataParallel reduces buckets of this size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """What is trained. parameters: of the whole model. layers: blocks, each a unit of FSDP.

    hidden, sequence, micro_batch: shape of the activations. experts_per_token: of a mixture of
    experts, 0 for a dense model. parameter_bytes, gradient_bytes: of one element as it is sent.
    """

    parameters: float
    layers: int = 32
    hidden: int = 0
    sequence: int = 0
    micro_batch: int = 1
    experts_per_token: int = 0
    parameter_bytes: int = 2
    gradient_bytes: int = 2

    @property
    def activation_bytes(self) -> float:
        """Of one micro-batch between two layers."""
        return float(self.micro_batch * self.sequence * self.hidden * self.parameter_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How ranks share the work. accumulate: micro-batches of a step."""

    strategy: Strategy = "ddp"
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    accumulate: int = 1


@dataclass(frozen=True, slots=True)
class Item:
    """One kind of call of a step. calls: in a step, by each rank. total_ns: of all of them, None
    where a link is not known. what: for the reader."""

    what: str
    call: Estimate
    calls: int

    @property
    def total_ns(self) -> float | None:
        return None if self.call.time_ns is None else self.calls * self.call.time_ns

    @property
    def bytes(self) -> float:
        """Message bytes of a step."""
        return self.calls * self.call.size_bytes


def plan(model: Model, layout: Layout, fabric: Fabric) -> list[Item]:
    """The calls of a step.

    Args:
        model, layout: What is trained, and how it is shared out.
        fabric: Of all ranks of the job.

    Raises:
        ValueError: the ranks can't be shared out so.
    """
    shared = layout.tensor * layout.pipeline
    if shared < 1 or fabric.ranks % shared:
        raise ValueError(
            f"{fabric.ranks} ranks can't be divided into groups of {layout.tensor} (tensor) by"
            f" {layout.pipeline} (pipeline)"
        )
    if layout.pipeline > model.layers:
        raise ValueError(f"{model.layers} layers can't fill {layout.pipeline} pipeline stages")
    items = _data_parallel(model, layout, fabric, fabric.ranks // shared)
    if layout.tensor > 1:
        group = fabric.group(layout.tensor, min(layout.tensor, fabric.per_node))
        call = estimate(CollectiveKind.ALL_REDUCE, model.activation_bytes, group)
        per_rank = 4 * model.layers // layout.pipeline * layout.accumulate
        items.append(Item("tensor parallel: activations", call, per_rank))
    if layout.expert > 1:
        group = fabric.group(layout.expert, min(layout.expert, fabric.per_node))
        size = model.activation_bytes * max(model.experts_per_token, 1) / layout.tensor
        call = estimate(CollectiveKind.ALL_TO_ALL, size, group)
        per_rank = 4 * model.layers // layout.pipeline * layout.accumulate
        items.append(Item("expert parallel: routed tokens", call, per_rank))
    if layout.pipeline > 1:
        crosses = fabric.nodes > 1 and layout.tensor * layout.pipeline > fabric.per_node
        group = fabric.group(2, 1 if crosses else 2)
        call = estimate(CollectiveKind.SEND_RECV, model.activation_bytes / layout.tensor, group)
        items.append(Item("pipeline: activations and gradients", call, 2 * layout.accumulate))
    return items


def _data_parallel(model: Model, layout: Layout, fabric: Fabric, ranks: int) -> list[Item]:
    """The gradients and parameters of the part of the model that one rank has."""
    if ranks < 2:
        return []
    part = model.parameters / (layout.tensor * layout.pipeline)
    layers = max(1, model.layers // layout.pipeline)
    # Ranks that share a part lie `tensor` apart, so fewer of them are on one node.
    per_node = max(1, fabric.per_node // layout.tensor)
    group = fabric.group(ranks, min(ranks, per_node))
    gradients, weights = part * model.gradient_bytes, part * model.parameter_bytes
    if layout.strategy == "ddp":
        buckets = max(1, round(gradients / BUCKET_BYTES))
        call = estimate(CollectiveKind.ALL_REDUCE, gradients / buckets, group)
        return [Item("data parallel: gradients", call, buckets)]
    reduce = CollectiveKind.REDUCE_SCATTER
    gather = CollectiveKind.ALL_GATHER
    if layout.strategy in ("zero1", "zero2"):
        times = layout.accumulate if layout.strategy == "zero2" else 1
        buckets = max(1, round(gradients / BUCKET_BYTES))
        return [
            Item("gradients", estimate(reduce, gradients / buckets, group), buckets * times),
            Item("parameters", estimate(gather, weights / buckets, group), buckets),
        ]
    times = layers * layout.accumulate
    if layout.strategy == "hsdp" and group.nodes > 1:
        inner = fabric.group(group.per_node, group.per_node)
        outer = fabric.group(group.nodes, 1)
        shard = gradients / layers / group.per_node
        return [
            *_shards(model, inner, weights / layers, gradients / layers, times),
            Item(
                "shards' gradients between nodes",
                estimate(CollectiveKind.ALL_REDUCE, shard, outer),
                layers,
            ),
        ]
    return _shards(model, group, weights / layers, gradients / layers, times)


def _shards(
    model: Model, group: Fabric, weights: float, gradients: float, times: int
) -> list[Item]:
    if group.ranks < 2:
        return []
    gather = estimate(CollectiveKind.ALL_GATHER, weights, group)
    reduce = estimate(CollectiveKind.REDUCE_SCATTER, gradients, group)
    return [
        Item("parameters, forward and backward", gather, 2 * times),
        Item("gradients", reduce, times),
    ]


def advice(items: Sequence[Item]) -> list[str]:
    """What the calls of a step suggest, in whole sentences; none where all is well."""
    lines = []
    for item in items:
        call = item.call
        if call.regime == "latency-bound" and call.half_bytes:
            lines.append(
                f"{item.what.capitalize()}: calls of {_bytes(call.size_bytes)} are bound by"
                f" latency; from {_bytes(4 * call.half_bytes)} on they reach the bandwidth."
            )
        if call.regime == "unknown" and call.ranks > 1:
            lines.append(f"{item.what.capitalize()}: the link is not known, so no time is given.")
    return lines


def _bytes(size: float) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} bytes"
