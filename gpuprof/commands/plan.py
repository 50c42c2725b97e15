"""`gpuprof plan`: what a run will take, before it is started."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprof.commands.completion import devices, generations
from gpuprof.commands.output import APath, lang_option, width_of_output
from gpuprof.errors import GpuprofError

if TYPE_CHECKING:
    from gpuprof.analyzers.communication_plan import Item
    from gpuprof.analyzers.fabric import Estimate, Fabric
    from gpuprof.analyzers.nccl.stated import Stated
    from gpuprof.peaks import Peaks

SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 26, 1 << 28, 1 << 30)
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send-recv")
MOST = 1e15
"""Parameters of a model that anybody may plan."""
UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}


@click.group()
def plan() -> None:
    """Say what a run will take before it is started.

    \b
    Examples:
      gpuprof plan communication --ranks 16 --device H100 --network-gbps 3200 --params 8b
    """


class Count(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """A number with a unit: 7e9, 7b, 350m."""

    name = "number"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d{1,2})?)([kmgbt]?)", str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is no number: say 7e9, 7b or 350m", param, ctx)
        number = float(match[1]) * UNITS[match[2]]
        if not 1 <= number <= MOST:
            self.fail(f"{value!r} is not between 1 and {MOST:g}", param, ctx)
        return number


@plan.command()
@click.option("--ranks", type=click.IntRange(2, 1_000_000), required=True, help="Ranks in all.")
@click.option(
    "--per-node", type=click.IntRange(1, 1024), default=8, show_default=True, help="Ranks a node."
)
@click.option(
    "--device",
    shell_complete=devices,
    help="GPU, as its driver names it: H100, A100-SXM4-80GB, …",
)
@click.option(
    "--network-gbps",
    type=click.FloatRange(0, 1e6, min_open=True),
    help="All network cards of a node together, Gbit/s: 8 of 400 are 3200.",
)
@click.option(
    "--pcie",
    type=click.IntRange(3, 5),
    shell_complete=generations,
    help="GPUs are connected by PCIe of this generation alone.",
)
@click.option(
    "--busbw",
    type=click.FloatRange(0, 1e5, min_open=True),
    help="Bus bandwidth that nccl-tests measured, GB/s; goes before all else.",
)
@click.option(
    "--log",
    type=APath(exists=True),
    help="NCCL's log of such a job, or a folder of them: what it planned or nccl-tests measured.",
)
@click.option("--params", type=Count(), help="Parameters of the model: 7e9, 7b, 350m.")
@click.option(
    "--strategy",
    type=click.Choice(("ddp", "zero1", "zero2", "fsdp", "hsdp")),
    default="ddp",
    show_default=True,
    help="How data-parallel ranks share the model.",
)
@click.option("--tensor", type=click.IntRange(1), default=1, help="Tensor-parallel ranks.")
@click.option("--pipeline", type=click.IntRange(1), default=1, help="Pipeline stages.")
@click.option("--expert", type=click.IntRange(1), default=1, help="Expert-parallel ranks.")
@click.option("--experts-per-token", type=click.IntRange(0), default=0)
@click.option("--layers", type=click.IntRange(1, 10_000), default=32, show_default=True)
@click.option("--hidden", type=click.IntRange(1), help="Width of the activations.")
@click.option("--sequence", type=click.IntRange(1), help="Tokens of a sample.")
@click.option("--micro-batch", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--accumulate", type=click.IntRange(1), default=1, show_default=True,
    help="Micro-batches of a step.",
)  # fmt: skip
@click.option(
    "--bytes", "element_bytes", type=click.IntRange(1, 8), default=2, show_default=True,
    help="Bytes of a parameter, a gradient and an activation as they are sent.",
)  # fmt: skip
@click.option(
    "--step-ms", type=click.FloatRange(0, min_open=True), help="A step without communication."
)
@click.option(
    "--collective", type=click.Choice(KINDS), default="all-reduce", show_default=True,
    help="For the table of sizes.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
@lang_option
def communication(as_json: bool, lang: str, **given: Any) -> None:
    """What collectives take on a set of GPUs, and what a training step must communicate.

    Times are of a call alone on its links, by the model that `analyze` judges traces with: latency
    plus bytes over bandwidth, ring, tree and NVLink's own sums. What overlaps with computing costs
    a step less; what shares a network with others costs more.

    \b
    Examples:
      gpuprof plan communication --ranks 8 --device A100-SXM4-80GB
      gpuprof plan communication --ranks 64 --device H100 --network-gbps 3200 --params 8b \\
          --strategy fsdp --layers 32 --step-ms 900
      gpuprof plan communication --ranks 32 --device H100 --network-gbps 3200 --params 70b \\
          --tensor 8 --hidden 8192 --sequence 4096 --layers 80
    """
    from gpuprof.reports.plan import to_text

    fabric = _fabric(given)
    rows = _table(given["collective"], fabric)
    items = _items(given, fabric)
    if as_json:
        click.echo(_json(given, fabric, rows, items), nl=False)
        return
    step_ms = given["step_ms"] or 0.0
    width = width_of_output()
    told = to_text(
        given["collective"], fabric, rows, items, step_ms=step_ms, lang=lang, width=width
    )
    click.echo(told, nl=False)


def _fabric(given: dict[str, Any]) -> Fabric:
    from gpuprof.analyzers.fabric import fabric_of
    from gpuprof.peaks import find, known_devices

    peaks = None
    if given["device"]:
        peaks = find(given["device"])
        if peaks is None:
            names = ", ".join(one.name.removeprefix("NVIDIA ") for one in known_devices()[:12])
            raise GpuprofError(
                f"no figures are known of {given['device']!r}",
                hint=f"name a device as its driver does ({names}, …), or give --busbw",
            )
    ranks, per_node = given["ranks"], min(given["per_node"], given["ranks"])
    if ranks % per_node:
        raise GpuprofError(f"{ranks} ranks do not fill nodes of {per_node}", hint="say --per-node")
    stated = _of_log(given["log"]) if given["log"] else None
    network = stated and stated.network
    fabric = fabric_of(
        peaks,
        ranks,
        per_node,
        network_bytes_per_s=(given["network_gbps"] or (network.gbps if network else 0.0)) * 1e9 / 8,
        pcie_generation=given["pcie"] or 0,
        measured_bytes_per_s=(given["busbw"] or 0.0) * 1e9,
        hop_ns=network.hop_us * 1e3 if network else 0.0,
    )
    if stated is not None and not fabric.measured_bytes_per_s:
        fabric = stated.applied_to(fabric)
    measured = fabric.measured_bytes_per_s
    if not measured and not fabric.link_bytes_per_s and fabric.per_node > 1:
        raise _unknown_link(peaks, fabric)
    if not measured and fabric.nodes > 1 and not fabric.network_bytes_per_s:
        raise GpuprofError(
            f"{fabric.nodes} nodes, and no network between them",
            hint="give --network-gbps (all cards of a node together), --busbw or --log",
        )
    return fabric


def _unknown_link(peaks: Peaks | None, fabric: Fabric) -> GpuprofError:
    if peaks is not None and peaks.link_devices:
        return GpuprofError(
            f"bridges connect at most {peaks.link_devices} {peaks.name}, not {fabric.per_node}",
            hint="give --pcie for the way between the others, or --busbw",
        )
    if peaks is not None:
        return GpuprofError(f"{peaks.name} has no links of its own", hint="give --pcie or --busbw")
    return GpuprofError(
        "what connects the GPUs of a node is not known", hint="give --device, --pcie or --busbw"
    )


def _of_log(path: str) -> Stated:
    from gpuprof.analyzers.nccl.stated import stated_by
    from gpuprof.readers.nccl_log import read_nccl_log

    found = stated_by(read_nccl_log(Path(path)))
    if found is None:
        raise GpuprofError(
            f"{path} states neither a bandwidth that NCCL planned nor one that was measured",
            hint="record it with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING",
        )
    return found


def _table(name: str, fabric: Fabric) -> list[Estimate]:
    from gpuprof.analyzers.collective_kinds import CollectiveKind
    from gpuprof.analyzers.fabric import estimate

    kind = CollectiveKind[name.upper().replace("-", "_")]
    return [estimate(kind, size, fabric) for size in SIZES]


def _items(given: dict[str, Any], fabric: Fabric) -> list[Item]:
    from gpuprof.analyzers.communication_plan import Layout, Model, plan

    wants_activations = given["tensor"] > 1 or given["pipeline"] > 1 or given["expert"] > 1
    if wants_activations and not (given["hidden"] and given["sequence"]):
        raise GpuprofError(
            "tensor, expert and pipeline parallelism send activations",
            hint="give --hidden and --sequence",
        )
    if not given["params"] and not wants_activations:
        if given["step_ms"]:
            raise GpuprofError("--step-ms is compared with a step's messages", hint="give --params")
        return []
    if not given["params"]:
        raise GpuprofError("the size of the model is missing", hint="give --params")
    model = Model(
        parameters=given["params"],
        layers=given["layers"],
        hidden=given["hidden"] or 0,
        sequence=given["sequence"] or 0,
        micro_batch=given["micro_batch"],
        experts_per_token=given["experts_per_token"],
        parameter_bytes=given["element_bytes"],
        gradient_bytes=given["element_bytes"],
    )
    layout = Layout(
        strategy=given["strategy"],
        tensor=given["tensor"],
        pipeline=given["pipeline"],
        expert=given["expert"],
        accumulate=given["accumulate"],
    )
    try:
        return plan(model, layout, fabric)
    except ValueError as error:
        raise GpuprofError(str(error), hint="change --tensor or --pipeline") from error


def _json(given: dict[str, Any], fabric: Fabric, rows: list[Estimate], items: list[Item]) -> str:
    import msgspec

    calls = [
        {
            "what": item.what,
            "calls": item.calls,
            "kind": item.call.kind.name.lower().replace("_", "-"),
            "ranks": item.call.ranks,
            "size_bytes": item.call.size_bytes,
            "time_us": _us(item.call.time_ns),
            "total_us": _us(item.total_ns),
            "regime": item.call.regime,
        }
        for item in items
    ]
    table = [
        {
            "size_bytes": row.size_bytes,
            "time_us": _us(row.time_ns),
            "latency_us": _us(row.latency_ns),
            "busbw_gb_per_s": row.busbw_bytes_per_s and round(row.busbw_bytes_per_s / 1e9, 3),
            "regime": row.regime,
        }
        for row in rows
    ]
    document = {
        "ranks": fabric.ranks,
        "per_node": fabric.per_node,
        "collective": given["collective"],
        "source": fabric.source,
        "table": table,
        "step": calls,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _us(time_ns: float | None) -> float | None:
    return None if time_ns is None else round(time_ns / 1e3, 3)
