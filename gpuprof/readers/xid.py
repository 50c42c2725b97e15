"""Reads Xid lines (the driver's error reports) from the kernel log: dmesg, journalctl, syslog.

Times are understood in the forms of `dmesg`, `dmesg -T`, `dmesg --time-format iso`, `-x`,
`journalctl` (short, short-iso, json) and syslog. `nvidia-peermem … ERROR detected invalid context`
is what the peer memory module prints when a process ends: benign, and only counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from gpuprof.readers.text import text_lines

MAX_EVENTS = 100_000
MAX_TEXT = 500


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One report. `kind` is "xid" (a GPU's) or "sxid" (an NVSwitch's).

    time_ns: as far as the line tells: from the epoch where `epoch`, from boot or in local time
    otherwise, None where it has none. pid and process: -1 and "" where the driver did not know.
    host: the machine, "" where the line does not name it.
    """

    code: int
    pci: str
    time_ns: int | None
    epoch: bool
    uuid: str = ""
    pid: int = -1
    process: str = ""
    text: str = ""
    kind: str = "xid"
    host: str = ""


@dataclass(frozen=True, slots=True)
class XidLog:
    """What a kernel log says about GPUs; `benign` counts lines that only look like errors."""

    events: tuple[XidEvent, ...]
    lines: int
    benign: int
    warnings: tuple[str, ...] = ()
    path: str = ""


_XID = re.compile(
    r"NVRM:(?: GPU at [^:]+:)? ?Xid \((?:PCI:)?(?P<pci>[0-9A-Fa-f:.]+)\): (?P<code>\d+)(?P<rest>.*)"
)
_SXID = re.compile(r"SXid \(PCI:(?P<pci>[0-9A-Fa-f:.]+)\): (?P<code>\d+)(?P<rest>.*)")
_NAMED = re.compile(r"NVRM: GPU at (?:PCI:)?(?P<pci>[0-9A-Fa-f:.]+): (?P<uuid>GPU-[0-9a-f-]{36})")
_PID = re.compile(r"\bpid='?(\d+)'?")
_NAME = re.compile(r"\bname=([^,<>\s]+)")
_HOST = re.compile(r"(?:^|\s)([\w.\-]{1,253}) kernel(?:\[\d+\])?: ")
"""What syslog and the journal write before the message of a kernel."""
_BENIGN = re.compile(r"nvidia[-_]peermem .*ERROR detected invalid context, skipping")


def is_xid_log(lines: Iterable[str]) -> bool:
    """Whether these lines are of a kernel log with something of the NVIDIA driver in it."""
    return any("NVRM:" in line or "SXid (" in line or "nvidia-peermem" in line for line in lines)


def read_xids(path: Path) -> XidLog:
    """All reports of a kernel log, in the order of the file.

    Raises:
        InputError: it cannot be opened.
    """
    return replace(parse_xids(text_lines(path, keep="times")), path=str(path))


def parse_xids(lines: Iterable[str]) -> XidLog:
    """All reports in these lines; a log without any yields an empty result."""
    events: list[XidEvent] = []
    uuids: dict[str, str] = {}
    benign = count = 0
    warnings: list[str] = []
    for message in lines:
        count += 1
        if "NVRM" not in message and "SXid" not in message and "peermem" not in message:
            continue
        if _BENIGN.search(message):
            benign += 1
            continue
        named = _NAMED.search(message)
        if named is not None:
            uuids[_pci(named["pci"])] = named["uuid"]
        match = _XID.search(message) or _SXID.search(message)
        if match is None:
            continue
        if len(events) >= MAX_EVENTS:
            warnings.append(f"only the first {MAX_EVENTS} reports were read")
            break
        time_ns, epoch = line_time(message[: match.start()])
        pid, name = _PID.search(match["rest"]), _NAME.search(match["rest"])
        pci = _pci(match["pci"])
        events.append(
            XidEvent(
                code=int(match["code"]),
                pci=pci,
                time_ns=time_ns,
                epoch=epoch,
                uuid=uuids.get(pci, ""),
                pid=int(pid[1]) if pid else -1,
                process=name[1] if name else "",
                text=match["rest"].lstrip(", ")[:MAX_TEXT],
                kind="sxid" if "SXid" in match[0] else "xid",
                host=host[1] if (host := _HOST.search(message[: match.start()])) else "",
            )
        )
    return XidLog(tuple(events), count, benign, tuple(warnings))


def _pci(text: str) -> str:
    """A PCI address as domain:bus:device, lower case: "0000:9b:00" whatever the log wrote."""
    return re.sub(r"\.[0-9a-f]$", "", text.lower().strip(":."))[-10:]


_ISO = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?(?:Z|[+-]\d{2}:?\d{2})?")
_CTIME = re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d{2}:\d{2}:\d{2} \d{4}")
_SYSLOG = re.compile(r"^[A-Z][a-z]{2} +\d{1,2} \d{2}:\d{2}:\d{2}")
_BOOT = re.compile(r"\[ *(\d+\.\d+)\]")


def line_time(prefix: str) -> tuple[int | None, bool]:
    """The time in what stands before a message: nanoseconds (None without one), from the epoch?

    A time without a zone is local time, and a syslog time lacks its year: neither counts from
    the epoch. Nor does a time in brackets: it counts from boot.
    """
    iso = _ISO.search(prefix)
    if iso is not None:
        text = re.sub(
            r"([+-]\d{2})(\d{2})$", r"\1:\2", iso[0].replace(",", ".").replace("Z", "+00:00")
        )
        return _nanoseconds(text)
    ctime = _CTIME.search(prefix)
    if ctime is not None:
        return _formatted(" ".join(ctime[0].split()), "%a %b %d %H:%M:%S %Y")
    boot = _BOOT.search(prefix)
    if boot is not None:
        return int(float(boot[1]) * 1e9), False
    syslog = _SYSLOG.search(prefix.lstrip())
    if syslog is not None:
        return _formatted("1970 " + " ".join(syslog[0].split()), "%Y %b %d %H:%M:%S")
    return None, False


def _nanoseconds(text: str) -> tuple[int | None, bool]:
    fraction = re.search(r"\.(\d+)", text)
    digits = (fraction[1] if fraction else "").ljust(9, "0")[:9]
    try:
        moment = datetime.fromisoformat(re.sub(r"\.\d+", "", text))
    except ValueError:
        return None, False
    zoned = moment.tzinfo is not None
    if not zoned:
        moment = moment.replace(tzinfo=timezone.utc)
    return int(moment.timestamp()) * 10**9 + int(digits), zoned


def _formatted(text: str, pattern: str) -> tuple[int | None, bool]:
    try:
        moment = datetime.strptime(text, pattern).replace(tzinfo=timezone.utc)
    except ValueError:
        return None, False
    return int(moment.timestamp()) * 10**9, False
