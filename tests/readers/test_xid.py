"""Xids in kernel logs of every form."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.readers.xid import is_xid_log, line_time, parse_xids, read_xids

CASES = Path(__file__).resolve().parents[2].parent / "shared/cases/xid"
XID = "NVRM: Xid (PCI:0000:19:00): 79, pid=1234, name=python3, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("prefix", "time_ns", "epoch"),
    [
        ("[ 1234.567890] ", 1_234_567_890_000, False),
        ("[Sun Feb 23 16:24:18 2025] ", 1_740_327_858_000_000_000, False),
        ("2024-11-15T12:02:03,470068+00:00 ", 1_731_672_123_470_068_000, True),
        ("kern  :err   : 2025-02-10T16:28:06,502716+01:00 ", 1_739_201_286_502_716_000, True),
        ("2024-11-15T12:02:03+0000 host kernel: ", 1_731_672_123_000_000_000, True),
        ("Nov 15 12:02:03 host kernel: ", 27_518_523_000_000_000, False),
        ("", None, False),
    ],
)
def test_times_of_all_forms(prefix: str, time_ns: int | None, epoch: bool) -> None:
    (event,) = parse_xids([prefix + XID]).events
    assert (event.code, event.pci, event.pid, event.process) == (79, "0000:19:00", 1234, "python3")
    assert event.epoch is epoch
    if time_ns is not None:
        assert event.time_ns == time_ns
    else:
        assert event.time_ns is None


def test_the_journals_json(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    line = '{"__REALTIME_TIMESTAMP":"1731672123470068","MESSAGE":"' + XID + '"}'
    path.write_text("\n".join([line, '{"MESSAGE": [78, 86]}', "{broken NVRM"]))
    (event,) = read_xids(path).events
    assert (event.time_ns, event.epoch) == (1_731_672_123_470_068_000, True)


def test_older_words_uuids_and_switches() -> None:
    lines = [
        "NVRM: GPU at PCI:0000:9B:00: GPU-509665ad-b600-ac93-3616-d754b23d636d",
        "NVRM: Xid (PCI:0000:9b:00): 31, Ch 00000008, intr 00000000.",
        "NVRM: Xid (0000:03:00): 13, Graphics Exception",
        "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 12028, Non-fatal, Link 32",
    ]
    mmu, old, switch = parse_xids(lines).events
    assert mmu.uuid == "GPU-509665ad-b600-ac93-3616-d754b23d636d"
    assert (mmu.pid, mmu.process) == (-1, "")
    assert (old.code, old.pci) == (13, "0000:03:00")
    assert (switch.kind, switch.code, switch.pci) == ("sxid", 12028, "0000:a9:00")


def test_peer_memory_lines_are_benign() -> None:
    line = "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping x"
    log = parse_xids([line] * 3)
    assert (log.events, log.benign) == ((), 3)
    assert is_xid_log([line])
    assert not is_xid_log(["kernel: hello"])


@given(st.text(max_size=120))
def test_any_prefix_has_a_time_or_none(text: str) -> None:
    line_time(text)
    parse_xids([text + XID, XID + text])


@pytest.mark.skipif(not CASES.is_dir(), reason="the real logs are not here")
def test_real_logs() -> None:
    found = [read_xids(path) for path in sorted(CASES.iterdir())]
    codes = [sorted({event.code for event in log.events}) for log in found]
    assert sorted(codes) == [[], [48, 63, 94], [119]]
    assert sum(log.benign for log in found) == 37
