"""What differs between ranks that must agree: version, plugin, network, NICs, environment."""

from __future__ import annotations

import re
from collections import defaultdict

from gpuprof.analyzers.nccl.conditions import Facts
from gpuprof.analyzers.nccl.evidence import class_evidence, finding, rank_list, row_evidence
from gpuprof.analyzers.nccl.jobs import Difference, differing
from gpuprof.commlog import CommLog
from gpuprof.diagnosis import Evidence, Finding, Fix
from gpuprof.readers.nccl_grammar import version_key

MUST_AGREE = frozenset(
    {
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_BUFFSIZE",
        "NCCL_LL_BUFFSIZE",
        "NCCL_NTHREADS",
        "NCCL_MAX_NCHANNELS",
        "NCCL_MIN_NCHANNELS",
        "NCCL_MAX_NRINGS",
        "NCCL_MIN_NRINGS",
        "NCCL_P2P_DISABLE",
        "NCCL_P2P_LEVEL",
        "NCCL_SHM_DISABLE",
        "NCCL_IB_DISABLE",
        "NCCL_NET",
        "NCCL_NET_PLUGIN",
        "NCCL_NVLS_ENABLE",
        "NCCL_COLLNET_ENABLE",
        "NCCL_CROSS_NIC",
        "NCCL_CUMEM_ENABLE",
        "NCCL_CUMEM_HOST_ENABLE",
        "NCCL_MNNVL_ENABLE",
        "NCCL_P2P_NET_CHUNKSIZE",
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        "NCCL_IB_QPS_PER_CONNECTION",
        "NCCL_PXN_DISABLE",
    }
)
"""Variables that both ends of a connection must read alike, or the job hangs or fails."""

EVERY_RANK_STATES = (2, 22)
"""From this release on every rank that logs at INFO states its version."""

PERHAPS_TWO_JOBS = (
    "No communicator joins the ranks that differ: if they are of two jobs, this is no fault."
)
PERHAPS_CONFIDENCE = 0.45
"""Of such a difference, which is a lead only: below what `nccl_causes.CERTAIN` asks."""

COMM_ID_DEFECT = ((2, 29, 2), (2, 29, 7))
"""Releases that compare IPv4 subnets the wrong way round when NCCL_COMM_ID is set."""


def _who(log: CommLog, processes: list[int]) -> str:
    ranks = {rank for p in processes for rank in log.processes[p].ranks.values()}
    hosts = list(dict.fromkeys(log.processes[p].host for p in processes))
    shown = ", ".join(hosts[:4]) + (" …" if len(hosts) > 4 else "")
    return f"{rank_list(ranks)} ({shown})" if ranks else shown


def _ranks(log: CommLog, processes: list[int]) -> set[int]:
    return {rank for p in processes for rank in log.processes[p].ranks.values()}


def findings_from_differences(log: CommLog) -> list[Finding]:
    """One finding for each thing that differs, the gravest first."""
    return [
        *_versions(log),
        *_networks(log),
        *_plugins(log),
        *_nics(log),
        *_environment(log),
        *_defects(log),
    ]


def _difference(
    log: CommLog,
    found: Difference,
    *,
    title: str,
    what: str,
    kind: str,
    fix: Fix,
    critical: bool = True,
) -> Finding:
    """The value of the fewest processes is the odd one."""
    ordered = sorted(found.rows.items(), key=lambda item: len(item[1]))
    odd = ordered[0][1]
    # Of many files, a line is in the one of its process.
    many = len(log.paths) > 1
    rest = f"; others have {ordered[-1][0] or 'none'}"
    evidence = [
        row_evidence(
            log,
            rows[0][1],
            rows[0][0] if many else None,
            f"{what} is {value or 'absent'} on {_who(log, [p for p, _ in rows])}"
            f"{rest if rows is odd else ''}",
        )
        for value, rows in ordered[:4]
    ]
    if not found.together:
        evidence.append(Evidence(text=PERHAPS_TWO_JOBS, source="nccl-log"))
    evidence.append(class_evidence([kind]))
    return finding(
        cause="nccl-config",
        title=title,
        severity="critical" if critical and found.together else "warning",
        confidence=0.9 if found.together else PERHAPS_CONFIDENCE,
        evidence=evidence,
        fixes=[fix],
        ranks=_ranks(log, [p for p, _ in odd]),
    )


def _versions(log: CommLog) -> list[Finding]:
    groups: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in log.versions:
        if row.process is not None and row.stated:
            groups[f"{row.library} {row.version}"].append((row.process, row.line))
    _add_silent(log, groups)
    found = differing(log, groups)
    if found is None:
        return []
    fix = Fix(
        title="Use one library on all nodes",
        detail="Look at LD_LIBRARY_PATH and at the wheel inside each container.",
        code="python -c 'import torch; print(torch.cuda.nccl.version())'",
    )
    return [
        _difference(
            log,
            found,
            title="Ranks run different NCCL versions",
            what="The version",
            kind="version_mismatch",
            fix=fix,
        )
    ]


def _add_silent(log: CommLog, groups: dict[str, list[tuple[int, int]]]) -> None:
    """Adds the ranks of an older library to those that state their version.

    Before `EVERY_RANK_STATES` only rank 0 prints a version, bare. Where others state theirs, those
    that print none are of that older one; not those that were a whole job among themselves, which
    another one followed in the same file.
    """
    bare = {
        row.version: row.line
        for row in log.versions
        if row.process is None and row.stated and row.library == "NCCL"
    }
    stating = {process for rows in groups.values() for process, _ in rows}
    apart = {
        process
        for comm in log.communicators
        if comm.size == log.world_size == len(comm.completed)
        and not stating.intersection(comm.processes.values())
        for process in comm.processes.values()
    }
    silent = [
        p
        for p, one in enumerate(log.processes)
        if one.ranks and p not in stating and p not in apart
    ]
    if groups and silent and len(bare) == 1:
        ((version, line),) = bare.items()
        if version_key(version) < EVERY_RANK_STATES:
            groups[f"NCCL {version}"] += [(p, line) for p in silent]


def _networks(log: CommLog) -> list[Finding]:
    first: dict[int, tuple[str, int]] = {}
    for fact in log.facts_of("network"):
        if fact.process is not None:
            first.setdefault(fact.process, (fact.fields["network"], fact.line))
    groups: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for process, (network, line) in first.items():
        groups[network].append((process, line))
    found = differing(log, groups)
    if found is None:
        return []
    fix = Fix(
        title="Make the same network usable on all nodes",
        detail="Install the plugin and pass the devices everywhere: ranks that chose different "
        "networks wait for each other without a word.",
        code="ls /dev/infiniband; ldconfig -p | grep nccl-net",
    )
    return [
        _difference(
            log,
            found,
            title="Ranks chose different networks",
            what="The network",
            kind="plugin_mismatch",
            fix=fix,
        )
    ]


def _plugins(log: CommLog) -> list[Finding]:
    have: dict[int, tuple[str, int]] = {}
    for fact in log.facts_of("plugin"):
        name = next((fact.fields[k] for k in ("c", "b", "d", "a") if k in fact.fields), "")
        if name and fact.process is not None:
            have[fact.process] = (name, fact.line)
    absent = {
        fact.process: fact.line
        for fact in log.facts_of("plugin_absent")
        if fact.process is not None
        and fact.process not in have
        and "libnccl-net" in (_text(log, fact.line) or "libnccl-net")
    }
    groups: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for process, (name, line) in have.items():
        groups[name].append((process, line))
    if have:
        for process, line in absent.items():
            groups[""].append((process, line))
    found = differing(log, groups)
    if found is None or _networks(log):
        return []
    fix = Fix(
        title="Install the same network plugin on all nodes",
        detail="With the plugin on a part of the nodes the job hangs without a message.",
        code="ldconfig -p | grep nccl-net; echo $LD_LIBRARY_PATH",
    )
    return [
        _difference(
            log,
            found,
            title="Ranks load different network plugins",
            what="The network plugin",
            kind="plugin_mismatch",
            fix=fix,
        )
    ]


def _text(log: CommLog, line: int) -> str:
    if log.lines is None:
        return ""
    found = (log.lines.line == line).nonzero()[0]
    return log.lines.text[int(found[0])] if len(found) else ""


def _nics(log: CommLog) -> list[Finding]:
    counts: dict[int, tuple[int, int]] = {}
    for fact in log.facts_of("rdma_devices"):
        if fact.process is not None and fact.process not in counts:
            devices = re.findall(r"\[\d+\]\S+", fact.fields.get("devices", ""))
            counts[fact.process] = (len(devices), fact.line)
    by_host: dict[str, int] = {}
    for process, (number, _line) in counts.items():
        host = log.processes[process].host
        by_host[host] = max(by_host.get(host, 0), number)
    if len(set(by_host.values())) < 2 or not all(by_host.values()):
        return []
    groups: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for process, (_number, line) in counts.items():
        groups[str(by_host[log.processes[process].host])].append((process, line))
    found = differing(log, groups)
    if found is None:
        return []
    fix = Fix(
        title="Mend the node with fewer NICs",
        detail="A ring runs at the pace of its narrowest node.",
        code="ibv_devinfo; rdma link",
    )
    return [
        _difference(
            log,
            found,
            title="Nodes differ in the number of usable NICs",
            what="The number of RDMA devices",
            kind="nic_mismatch",
            fix=fix,
            critical=False,
        )
    ]


def _environment(log: CommLog) -> list[Finding]:
    values: dict[str, dict[int, tuple[str, int]]] = defaultdict(dict)
    for setting in log.env:
        if setting.variable in MUST_AGREE:
            values[setting.variable].setdefault(setting.process, (setting.value, setting.line))
    up = {p for comm in log.communicators for r, p in comm.processes.items() if r in comm.completed}
    for variable, rows in sorted(values.items()):
        groups: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for process, (value, line) in rows.items():
            groups[value].append((process, line))
        # A whole host whose ranks all came up and never read the variable has it unset.
        speaking = {log.processes[p].host for p in rows}
        silent = [p for p in sorted(up) if log.processes[p].host not in speaking]
        if silent and len(rows) >= len({p for p in up if log.processes[p].host in speaking}):
            groups[""] += [(p, 0) for p in silent]
        found = differing(log, groups)
        if found is None:
            continue
        fix = Fix(
            title="Make the NCCL environment the same on all ranks",
            detail="Pass it through the launcher (mpirun -x, srun --export, the pod template).",
            code="env | grep NCCL_ | sort | md5sum",
        )
        return [
            _difference(
                log,
                found,
                title=f"{variable} differs between ranks",
                what=variable,
                kind="env_mismatch",
                fix=fix,
            )
        ]
    return []


def _defects(log: CommLog) -> list[Finding]:
    facts = Facts(log)
    if "NCCL_COMM_ID" not in facts.variables:
        return []
    low, high = COMM_ID_DEFECT
    for row in log.versions:
        if row.stated and row.library == "NCCL" and low <= version_key(row.version)[:3] <= high:
            line = next((e.line for e in log.env if e.variable == "NCCL_COMM_ID"), row.line)
            return [
                finding(
                    cause="nccl-config",
                    title=f"NCCL {row.version} chooses loopback when NCCL_COMM_ID is set",
                    severity="critical",
                    confidence=0.8,
                    evidence=[
                        row_evidence(
                            log,
                            line,
                            row.process,
                            f"NCCL_COMM_ID is {facts.variables['NCCL_COMM_ID']}, and "
                            f"NCCL {row.version} compares IPv4 subnets the wrong way round",
                        ),
                        class_evidence(["nic_loopback", "comm_id_subnet"]),
                    ],
                    fixes=[
                        Fix(
                            title="Unset NCCL_COMM_ID, or leave 2.29.2 to 2.29.7",
                            detail="Frameworks exchange the unique id themselves.",
                            code="unset NCCL_COMM_ID",
                        )
                    ],
                )
            ]
    return []
