"""What NCCL prints, as data: one entry a kind of line, with the versions that print it.

The table covers NCCL 2.4 to 2.30 and the lines of RCCL that read the same. A kind has the heads
its message can start with (the reader finds candidate lines by them, on raw bytes, before any
pattern runs), the pattern on the message after the prefix, and how many lines of it are worth
keeping per process. Facts (texts, versions, subsystems) come from the format strings of the
published NCCL sources; the patterns are this project's own.

A field that a version does not print is absent from the result, never guessed.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class LineKind(NamedTuple):
    """One kind of NCCL line.

    `heads` are small patterns for the first bytes of the message. `subsystem` is the
    NCCL_DEBUG_SUBSYS bit that must be on; `since` and `until` are the first and the last NCCL
    version that print this form (empty: still printed); `keep` is the number of lines of this kind
    that are kept for one process, the rest is only counted.
    """

    name: str
    subsystem: str
    since: str
    until: str
    heads: tuple[str, ...]
    pattern: str
    keep: int = 32


POINTER = r"(?:0x)?[0-9a-fA-F]+|\(nil\)"
_COMM_TAIL = (
    r"(?: cudaDev (?P<cuda>\d+))?(?: nvmlDev (?P<nvml>\d+))?(?: busId (?P<bus>[0-9a-f]+))?"
    r"(?: parent (?P<parent>\S+))?(?: (?:splitCount|childCount) \d+)?"
    r"(?: color (?P<color>-?\d+) key -?\d+)?(?: commId (?P<commid>\S+))?"
    r"(?: localSize \d+ used \d+ bytes)?"  # RCCL
)
_COMM_HEAD = (
    r"^(?:\[Rank \d+\] )?(?:ncclComm\w+ )?comm (?P<comm>" + POINTER + r") rank (?P<rank>\d+) "
    r"n[rR]anks (?P<nranks>\d{1,6})(?!\d)"
)

INFO_KINDS: tuple[LineKind, ...] = (
    LineKind(
        "version",
        "ALL",
        "2.3",
        "",
        ("NCCL version ", "RCCL version"),
        r"^(?P<library>[NR]CCL) version ?:? ?(?P<version>\d+\.\d+\.\d+)(?P<suffix>[\w.\-]*)"
        r"(?:[+:](?:cuda|hip|rocm)?(?P<cuda>[\w.]+))?",
        4,
    ),
    LineKind(
        "cuda_driver",
        "INIT",
        "2.13",
        "",
        ("cudaDriverVersion ",),
        r"^cudaDriverVersion (?P<driver>\d+)$",
        1,
    ),
    LineKind(
        "env",
        "ENV",
        "2.3",
        "",
        ("NCCL_", "RCCL_"),
        r"^(?P<variable>[NR]CCL_\w+) set (?:by environment )?to (?P<value>\S.*?)\.?$",
        64,
    ),
    LineKind(
        "env_invalid",
        "ENV",
        "2.12",
        "",
        ("Invalid value ",),
        r"^Invalid value (?P<value>\S+) for (?P<variable>\S+), using default",
        8,
    ),
    LineKind(
        "bootstrap",
        "INIT",
        "2.4",
        "",
        ("Bootstrap :", "Bootstrap:"),
        r"^Bootstrap ?: Using (?:\[\d+\])?(?P<interface>[^:\s]+):(?P<address>\S+)",
        2,
    ),
    LineKind(
        "plugin_absent",
        "INIT",
        "2.4",
        "",
        ("NET/Plugin",),
        r"^NET/Plugin ?: (?:No plugin found|Could not find|dlerror|Plugin load|Using internal).*$",
        2,
    ),
    LineKind(
        "plugin",
        "INIT",
        "2.8",
        "",
        (
            "NET/Plugin: Loaded",
            "Plugin Path",
            "P2P plugin",
            "Successfully loaded external",
            "NET/OFI",
        ),
        r"^(?:NET/Plugin: Loaded net plugin (?P<a>.+?)(?: \(v\d+\))?$"
        r"|Successfully loaded external (?:network )?plugin (?P<b>\S+)"
        r"|P2P plugin (?:v\d+ )?(?P<c>\S+)"
        r"|NET/OFI (?:Initializing|Using) (?P<d>aws-ofi-nccl) ?(?P<plugin_version>\S*)"
        r"|NET/OFI Running on (?P<platform>\S+) platform"
        r"|NET/OFI Selected (?:P|p)rovider is (?P<provider>\S+))",
        4,
    ),
    LineKind(
        "rdma_devices",
        "INIT",
        "2.4",
        "",
        ("NET/IB : Using",),
        r"^NET/IB : Using(?P<devices>.*?)(?: \[RO\])?\s*; OOB (?P<oob>[^:\s]+):?(?P<address>\S*)",
        2,
    ),
    LineKind(
        "rdma_none",
        "INIT",
        "2.4",
        "",
        ("NET/IB : No device",),
        r"^NET/IB : No device found",
        1,
    ),
    LineKind(
        "socket_devices",
        "INIT",
        "2.4",
        "",
        ("NET/Socket : Using",),
        r"^NET/Socket : Using (?P<devices>\[0\].+)$",
        1,
    ),
    LineKind(
        "network",
        "INIT",
        "2.6",
        "",
        ("Using network ",),
        r"^Using network (?P<network>.+?)\s*$",
        4,
    ),
    LineKind(
        "gdr",
        "NET",
        "2.4",
        "",
        ("NET/", "GPU Direct"),
        r"^(?:NET/(?P<net>[\w ]+?) ?: ?)?GPU Direct RDMA (?P<state>Enabled|Disabled) for "
        r"(?:GPU (?P<gpu>\S+) / )?HCA (?P<hca>\S+)(?: '(?P<name>[^']+)')?",
        64,
    ),
    LineKind(
        "init_start",
        "INIT",
        "2.18.3",
        "",
        ("comm ", "ncclComm", r"\[Rank "),
        _COMM_HEAD + _COMM_TAIL + r" ?- Init START\s*$",
        256,
    ),
    LineKind(
        "init_complete",
        "INIT",
        "2.4",
        "",
        ("comm ", "ncclComm"),
        _COMM_HEAD + _COMM_TAIL + r" ?- (?:Init )?COMPLETE\s*$",
        256,
    ),
    LineKind(
        "comm_end",
        "INIT",
        "2.8",
        "",
        ("comm ",),
        _COMM_HEAD + r".* - (?P<what>Destroy|Abort|Finalize|Revoke)",
        64,
    ),
    LineKind(
        "comm_shape",
        "INIT",
        "2.20",
        "",
        ("comm ",),
        r"^comm (?P<comm>"
        + POINTER
        + r") rank (?P<rank>\d+) nRanks (?P<nranks>\d{1,6})(?!\d) nNodes "
        r"(?P<nnodes>\d+) localRanks (?P<local>\d+) localRank \d+ MNNVL (?P<mnnvl>\d+)",
        32,
    ),
    LineKind(
        "init_timings",
        "INIT",
        "2.22",
        "",
        ("Init timings",),
        r"^Init timings(?: - \w+)?: rank (?P<rank>\d+) nranks (?P<nranks>\d{1,6})(?!\d) total "
        r"(?P<total>[\d.]+) \((?P<parts>[^)]*)\)",
        4,
    ),
    LineKind(
        "nvls",
        "INIT",
        "2.17",
        "",
        ("NVLS multicast",),
        r"^NVLS multicast support is (?P<no>not )?available on dev (?P<dev>\d+)",
        1,
    ),
    LineKind(
        "collnet",
        "INIT",
        "2.6",
        "",
        (r"Coll(?:Net)? \d",),
        r"^Coll(?:Net)? \d+(?:/\d+)? : (?P<text>\d+ .*via COLLNET/.*)$",
        8,
    ),
    LineKind(
        "trees",
        "INIT",
        "2.4",
        "",
        ("Trees ",),
        r"^Trees ?(?P<trees>\[\d+\].*)$",
        2,
    ),
    LineKind(
        "channels",
        "INIT",
        "2.7",
        "",
        (r"\d+ coll",),
        r"^(?P<coll>\d+) coll channels(?:, (?P<collnet>\d+) collnet channels)?"
        r"(?:, (?P<nvls>\d+) nvls channels)?, (?P<p2p>\d+) p2p channels, "
        r"(?P<peer>\d+) p2p channels",
        8,
    ),
    LineKind(
        "connected",
        "INIT",
        "2.8",
        "",
        ("Connected all rings",),
        r"^Connected (?P<what>all rings)(?:, use ring PXN (?P<pxn>\d) GDR (?P<gdr>\d))?",
        4,
    ),
    LineKind(
        "p2p_off",
        "INIT",
        "2.4",
        "",
        ("P2P is disabled", "P2P not supported", "Could not enable P2P", "peer query failed"),
        r"^(?:P2P is disabled between (?P<nvlink>NVLINK )?connected GPUs (?P<a>\d+) and (?P<b>\d+)"
        r"|P2P not supported between GPU(?P<c>\d+) and GPU(?P<d>\d+)"
        r"|(?:Could not enable P2P|peer query failed) between dev (?P<e>\S+) and dev (?P<f>\S+))",
        16,
    ),
    LineKind(
        "system",
        "GRAPH",
        "2.5",
        "",
        ("=== System",),
        r"^=== System : max(?:Bw|Width) +(?P<max>[\d.]+)"
        r"(?: (?:totalBw|totalWidth|maxSpeed) +(?P<total>[\d.]+))? ===",
        2,
    ),
    LineKind(
        "topology_node",
        "GRAPH",
        "2.5",
        "",
        (r" *\+ [A-Z]", "CPU/"),
        r"^\s*(?:\+ (?P<link>[A-Z0-9]{3})\[ ?(?P<bandwidth>[\d.]+)\] - )?"
        r"(?P<node>CPU|PCI|GPU|NIC|NET|NVS|GIN|RMA|DEV)/(?P<id>[0-9A-Fa-f]+(?:-[0-9a-f]+)?)"
        r"(?: \((?P<attributes>[^)]*)\))?\s*$",
        256,
    ),
    LineKind(
        "topology_path",
        "GRAPH",
        "2.5",
        "",
        ("GPU/", "NET/"),
        r"^(?P<node>GPU|NET)/(?P<id>[0-9A-Fa-f]+(?:-[0-9a-f]+)?) :(?P<paths>.*)$",
        64,
    ),
    LineKind(
        "pattern",
        "GRAPH",
        "2.5",
        "",
        ("Pattern ",),
        r"^Pattern (?P<pattern>\d), crossNic (?P<cross>\d), nChannels (?P<channels>\d+), "
        r"(?:bw|speed) (?P<intra>[\d.]+)/(?P<inter>[\d.]+), type (?P<type_intra>\w+)/"
        r"(?P<type_inter>\w+)",
        8,
    ),
    LineKind(
        "tuning",
        "TUNING",
        "2.20",
        "",
        (r"(?:\w+: )?\d+ Bytes ->",),
        r"^(?:(?P<function>\w+): )?(?P<bytes>\d+) Bytes -> Algo (?P<algorithm>\w+) proto "
        r"(?P<protocol>\w+)(?: time (?P<time>[\d.]+)"
        r"| channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})?",
        64,
    ),
    LineKind(
        "shared_memory_limit",
        "INIT",
        "2.20",
        "",
        ("ncclMaxSharedMem ",),
        r"^ncclMaxSharedMem (?P<need>\d+) exceeds device/fn maxSharedMem (?P<have>\d+)",
        1,
    ),
    LineKind(
        "error_path",
        "ALL",
        "2.3",
        "",
        (r"[\w./\-]+\.(?:cc|cu|h|c|cpp):\d+(?: \(\w+\))? ->",),
        r"^(?P<file>[\w./\-]+\.(?:cc|cu|h|c|cpp)):(?P<line>\d+)(?: \(\w+\))? -> (?P<code>\d+)"
        r"(?: \((?P<why>[^)]*)\))?(?: \[(?P<thread>[^\]]+)\])?",
        24,
    ),
    LineKind(
        "topology_file",
        "GRAPH",
        "2.6",
        "",
        ("Loading topology file",),
        r"^Loading topology file (?P<path>\S+)",
        2,
    ),
    LineKind(
        "ras",
        "RAS",
        "2.24",
        "",
        ("RAS declaring", "RAS peer"),
        r"^RAS (?:declaring )?peer (?P<peer>.+?) (?:as|is) DEAD",
        8,
    ),
    LineKind(
        "nccl_info_error",
        "ALL",
        "2.4",
        "",
        (
            "Call to ",
            "Cuda failure",
            "Failed to ",
            "Could not ",
            "Error",
            "socketProgress",
            "ncclSocket",
            "NET/IB : Got",
            "NET/IB: Got",
            "Missing ",
            "HINT",
            "NET/OFI Could",
            "transport/",
        ),
        r"^(?P<text>.+)$",
        16,
    ),
)
"""INFO lines worth reading, most specific first within a head."""

TRANSPORTS: tuple[re.Pattern[bytes], ...] = (
    re.compile(rb"Channel \d+(?:/\d+)? ?: +(\d+[\[ ][^\r\n]*)"),
    re.compile(rb"Ring \d+ ?: +(\d+[\[ ][^\r\n]*)"),
)
"""The part of a transport or ring-order line that does not change from channel to channel (2.3 to
2.6 say Ring, later ones Channel)."""

TRANSPORT_FIELDS = re.compile(
    r"^(?P<source>\d+)(?:\[(?P<source_device>[0-9a-f]+)\])? "
    r"(?:-> (?P<target>\d+)(?:\[(?P<target_device>[0-9a-f]+)\])? )?"
    r"(?:\[(?P<direction>send|receive)\] )?via "
    r"(?:(?P<p2p>P2P)/(?P<p2p_how>direct pointer|IPC|CUMEM|MNNVL|indirect/\d+\[\w+\]|[\w ]+)"
    r"|(?P<shm>SHM/\w+(?:/\w+)?|direct shared memory)"
    r"|(?P<net>NET|COLLNET)/(?P<plugin>[^/]+)/(?P<nic>\d+)(?:\((?P<proxy>\w+)\))?)"
    r"(?P<options>(?:/\w+(?:\(PCI\))?)*)(?: comm (?P<comm>\S+))?"
)

RING_ORDER = re.compile(r"^\d+(?:\s+\d+)+\s*$")

COLLECTIVE = re.compile(
    rb"opCount ([0-9a-f]+) sendbuff \S+ recvbuff \S+ count (\d+) datatype (\d+) op (\d+) "
    rb"root (\d+) comm (\S+)"
)
"""One API call of one rank (subsystem COLL). The function name stands before it."""

BARE_HINT = re.compile(
    rb"W(?:atchdog|orkNCCL|ARN )|N(?:CCL(?! CALL)|o space|o interface|o IP|ET/)|"
    rb"Last (?:error|NCCL)|"
    rb"C(?:UDA |uda f|onnect|ount |all to|CL version)|F(?:inger|ailed to|abric)|P(?:G status|2P D)|"
    rb"Got |Duplicate G|M(?:ultiple R|essage trunc|ismatch|NNVL)|A(?:F_INET|vg bus)|Error while|"
    rb"To our best|HAMI|ACSC|DMAR|AMD-Vi|GT/s|=== System|Pattern \d|GPU Direct|\+ [PN][CV][IL]\[|"
    rb"#\d|%\||T(?:imed out |CP client failed|he (?:client|server) socket)|Rendezvous[TC]"
)
"""A cheap first look at lines without NCCL's prefix. Its alternatives start with letters that are
rare in running text, which makes the search four times as fast as the texts themselves would."""

BARE = re.compile(
    r"[Ww]atchdog|WorkNCCL\(|PG status|Last error:|Last NCCL warning|finished collective #|"
    r"(?:started|finished) ranks:|lagging|FingerPrint|NCCL failure|NCCL error|CUDA failure|"
    r"Cuda failure|CUDA error|No space left on device|shared memory segment|posix_fallocate|"
    r"Failed to bind NVLink|MNNVL \(|essage truncated|ncclSocketInit|socketStartConnect|"
    r"socket interface|No interface found|Duplicate GPU|Multiple Ranks|libibverbs|ibv_|"
    r"Got completion|Got async|Got non-fatal|ismatched collective|mismatch error|P2P DISABLED|"
    r"opCount |\d WARN |Connection (?:closed|reset|refused)|[NR]CCL version|No IP interface|"
    r"neither AF_INET|[Ff]abric ?[Mm]anager|Avg bus bandwidth|HAMI-core|NCCL_[A-Z0-9_]+=|ACSCtl|"
    r"IOMMU enabled|AMD-Vi: |link_width=|^\s*=== System|Pattern \d, cross|GPU Direct RDMA |"
    r"Connected all rings|\+ (?:PCI|NVL)\[|"
    r"Timed out (?:after \d+ seconds waiting for|initializing process group)|Rendezvous(?:Timeout|"
    r"Connection)Error|TCP client failed to connect/validate|retrieving ncclUniqueId|"
    r"(?:client socket has timed out|server socket has failed to listen on any)|"
    r"\d%\|.*(?:[a-z]+/s|s/[a-z]+)\b"
)
"""What a line without NCCL's prefix must hold to be kept: texts that frameworks repeat, PyTorch's
watchdog and rendezvous, launch failures, the progress bar of the work that a late rank is in."""

FINGERPRINTS: tuple[tuple[str, str, str], ...] = (
    (r"^NET/Plugin : No plugin found \(libnccl-net\.so\)\.$", "2.4.2", "2.4.8"),
    (r"^NET/Plugin : No plugin found .*using internal implementation", "2.5.6", "2.16.5"),
    (r"^NET/Plugin : Plugin load \(.*\) returned \d+", "2.17.1", "2.18.6"),
    (r"^NET/Plugin : dlerror=.*No plugin found", "2.19.3", "2.20.5"),
    (r"^NET/Plugin: (?:No plugin found|Plugin load returned)", "2.21.5", "2.21.5"),
    (r"^NET/Plugin: Could not find: ", "2.22.3", "2.30.7"),
    (r"^Bootstrap : Using \[0\]", "2.4.2", "2.6.4"),
    (r"^Bootstrap : Using [^\[]", "2.7.3", "2.23.4"),
    (r"^Bootstrap: Using ", "2.24.3", "2.30.7"),
    (r"^Using network ", "2.6.4", "2.30.7"),
    (r"^Ring \d+ : \d+\[\d+\] -> ", "2.4.2", "2.6.4"),
    (r"^Channel \d+ : \d+\[[0-9a-f]+\] -> \d+\[[0-9a-f]+\] via ", "2.7.3", "2.13.4"),
    (r"^Channel \d+/\d+ : \d+\[[0-9a-f]+\] -> \d+\[[0-9a-f]+\] ", "2.12.7", "2.30.7"),
    (r" commId 0x[0-9a-f]+ - Init (?:START|COMPLETE)", "2.16.2", "2.30.7"),
    (r" - Init START$", "2.18.3", "2.30.7"),
    (r"^ncclCommInitRank\w* comm .* - Init (?:START|COMPLETE)", "2.19.3", "2.30.7"),
    (r"^=== System : maxWidth ", "2.5.6", "2.13.4"),
    (r"^=== System : maxBw ", "2.14.3", "2.30.7"),
    (r"^Setting affinity for GPU ", "2.4.2", "2.27.7"),
    (r"^ncclTopoGetCpuAffinity: Affinity for GPU ", "2.28.3", "2.30.7"),
    (r"^Connected all rings, use ring PXN", "2.25.1", "2.30.7"),
    (r"^comm \S+ rank \d+ nRanks \d+ nNodes ", "2.20.3", "2.30.7"),
    (r"^cudaDriverVersion ", "2.13.4", "2.30.7"),
    (r"^Check P2P Type ", "2.24.3", "2.30.7"),
    (r"^(?:Initialized|Assigned) NET plugin ", "2.27.3", "2.30.7"),
)
"""Texts that date a log without a version line: pattern, first and last version that print it."""

RELEASES: tuple[str, ...] = (
    *("2.4.2", "2.4.6", "2.4.7", "2.4.8", "2.5.6", "2.5.7", "2.6.4", "2.7.3", "2.7.5", "2.7.6"),
    *("2.7.8", "2.8.3", "2.8.4", "2.9.6", "2.9.8", "2.9.9", "2.10.3", "2.11.4", "2.12.7"),
    *("2.12.10", "2.12.12", "2.13.4", "2.14.3", "2.15.1", "2.15.5", "2.16.2", "2.16.5", "2.17.1"),
    *("2.18.1", "2.18.3", "2.18.5", "2.18.6", "2.19.1", "2.19.3", "2.19.4", "2.20.3", "2.20.5"),
    *("2.21.5", "2.22.3", "2.23.4", "2.24.3", "2.25.1", "2.26.2", "2.26.5", "2.26.6", "2.27.3"),
    *("2.27.5", "2.27.6", "2.27.7", "2.28.3", "2.28.7", "2.28.9", "2.29.2", "2.29.3", "2.29.7"),
    *("2.30.3", "2.30.4", "2.30.7"),
)
"""Releases that a log can be dated to."""


def version_key(version: str) -> tuple[int, ...]:
    """`2.18.5` as (2, 18, 5); parts that are no number end it."""
    numbers: list[int] = []
    for part in version.split("."):
        digits = re.match(r"\d+", part)
        if digits is None:
            break
        numbers.append(int(digits.group()))
    return tuple(numbers)
