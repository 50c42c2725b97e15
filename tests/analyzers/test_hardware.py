"""Faults of the hardware and limits it runs into; what is normal is no finding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fixtures.samples import START_NS, samples
from gpuprof.analyzers.hardware import hardware_findings
from gpuprof.analyzers.memory_pressure import growth, memory_findings
from gpuprof.diagnosis import Finding
from gpuprof.readers.smi import read_smi
from gpuprof.readers.xid import parse_xids, read_xids
from gpuprof.sample_format import Status
from gpuprof.samples import RankFacts, SampleEvent, Samples, series

CASES = Path(__file__).resolve().parents[2].parent / "shared/cases"
FACTS = {
    "sm_clock_max_mhz": 1980.0, "pcie_gen_max": 5.0, "pcie_width_max": 16.0,
    "power_default_w": 700.0, "mem_total_bytes": 80.0 * 2**30, "pci_bus_id": "00000000:19:00.0",
}  # fmt: skip
N = 200


def loaded(extra: dict[tuple[str, str], list[float]], gpus: int = 1, **options: object) -> Samples:
    """GPUs at full load for 20 s, and what else was sampled."""
    base = {("util_frac", f"gpu:{i}"): [0.98] * N for i in range(gpus)}
    return samples({**base, **extra}, facts=FACTS, **options)  # type: ignore[arg-type]


def ramp(per_second: float) -> list[float]:
    return [per_second * 0.1 * k for k in range(N)]


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_a_healthy_gpu_has_no_finding() -> None:
    values = {
        ("sm_clock_mhz", "gpu:0"): [1900.0] * N,
        ("throttle_power_cap_ns", "gpu:0"): ramp(0.9e9),  # normal at full load on a big card
        ("throttle_sw_thermal_ns", "gpu:0"): [0.0] * N,
        ("pcie_gen", "gpu:0"): [5.0] * N,
        ("pcie_width", "gpu:0"): [16.0] * N,
        ("power_limit_w", "gpu:0"): [700.0] * N,
        ("ecc_uncorrected", "gpu:0"): [3.0] * N,  # from before: it does not grow
        ("mem_used_bytes", "gpu:0"): [40.0 * 2**30] * N,
    }
    recorded = loaded(values)
    assert hardware_findings(recorded) == []
    assert memory_findings(recorded) == []


def test_an_idle_gpu_is_not_judged() -> None:
    values = {
        ("util_frac", "gpu:0"): [0.0] * N,
        ("sm_clock_mhz", "gpu:0"): [345.0] * N,
        ("pcie_gen", "gpu:0"): [1.0] * N,
    }
    assert hardware_findings(samples(values, facts=FACTS)) == []


def test_heat_is_found_by_the_drivers_counter() -> None:
    values = {
        ("sm_clock_mhz", "gpu:0"): [1500.0] * N,
        ("throttle_hw_thermal_ns", "gpu:0"): ramp(0.4e9),
        ("temp_c", "gpu:0"): [91.0] * N,
    }
    finding = only(hardware_findings(loaded(values)))
    assert finding.cause == "throttling"
    assert finding.severity == "critical"
    assert finding.evidence[0].value == pytest.approx(0.4, abs=0.01)
    assert finding.share == pytest.approx(1 - 1500 / 1980)
    assert "91 °C" in finding.evidence[2].text


def test_heat_is_found_by_the_reason_bits_where_there_is_no_counter() -> None:
    values = {
        ("sm_clock_mhz", "gpu:0"): [1500.0] * N,
        ("throttle_reasons", "gpu:0"): [float(0x20)] * N,
    }
    assert only(hardware_findings(loaded(values))).cause == "throttling"


def test_the_idle_bit_is_no_throttling() -> None:
    assert hardware_findings(loaded({("throttle_reasons", "gpu:0"): [1.0] * N})) == []


def test_a_power_cap_counts_when_it_costs_clock_or_was_lowered() -> None:
    capped = {("throttle_power_cap_ns", "gpu:0"): ramp(0.9e9)}
    slow = loaded({**capped, ("sm_clock_mhz", "gpu:0"): [1600.0] * N})
    assert "power limit" in only(hardware_findings(slow)).title
    lowered = loaded(
        {
            **capped,
            ("sm_clock_mhz", "gpu:0"): [1900.0] * N,
            ("power_limit_w", "gpu:0"): [400.0] * N,
        }
    )
    finding = only(hardware_findings(lowered))
    assert any("400 W" in evidence.text for evidence in finding.evidence)


def test_one_gpu_with_a_lower_clock_is_named_with_its_rank() -> None:
    clocks = {("sm_clock_mhz", f"gpu:{i}"): [1400.0 if i == 2 else 1900.0] * N for i in range(4)}
    ranks = [RankFacts(pid=i, rank=8 + i, uuids=(f"GPU-{i}",)) for i in range(4)]
    finding = only(hardware_findings(loaded(clocks, gpus=4, ranks=ranks)))
    assert finding.ranks == (10,)
    assert "peers" in finding.title


def test_a_clock_that_drops_for_no_named_reason() -> None:
    """Application clocks or a rack's cap show in no counter."""
    clock = [1900.0] * 150 + [1200.0] * 50
    finding = only(hardware_findings(loaded({("sm_clock_mhz", "gpu:0"): clock})))
    assert finding.cause == "throttling"
    assert "1200 MHz" in finding.evidence[0].text
    explained = loaded(
        {("sm_clock_mhz", "gpu:0"): clock, ("throttle_hw_thermal_ns", "gpu:0"): ramp(0.2e9)}
    )
    assert "heat" in only(hardware_findings(explained)).title


def test_of_two_that_differ_none_is_accused() -> None:
    clocks = {("sm_clock_mhz", f"gpu:{i}"): [1400.0 + 400 * i] * N for i in range(2)}
    assert hardware_findings(loaded(clocks, gpus=2)) == []


@pytest.mark.parametrize(("metric", "now"), [("pcie_width", 8.0), ("pcie_gen", 3.0)])
def test_a_degraded_link_under_load(metric: str, now: float) -> None:
    finding = only(hardware_findings(loaded({(metric, "gpu:0"): [now] * N})))
    assert finding.cause == "hardware-fault"
    assert finding.severity == "warning"


def test_new_memory_errors_are_critical() -> None:
    finding = only(hardware_findings(loaded({("ecc_uncorrected", "gpu:0"): [3.0, *[4.0] * 99]})))
    assert finding.severity == "critical"
    assert "1 uncorrectable" in finding.evidence[0].text


def test_rows_that_wait_for_a_reset() -> None:
    values = {("remap_pending", "gpu:0"): [1.0], ("remap_uncorrected", "gpu:0"): [4.0]}
    assert only(hardware_findings(loaded(values))).severity == "warning"
    failed = {("remap_failed", "gpu:0"): [1.0]}
    assert only(hardware_findings(loaded(failed))).severity == "critical"


def test_a_lost_gpu_is_said_once() -> None:
    time_ns = START_NS + np.arange(4, dtype=np.int64) * 10**8
    value = np.array([1.0, 1.0, np.nan, np.nan])
    status = np.array([0, 0, Status.LOST, Status.LOST], dtype=np.uint8)
    made = {
        (name, "gpu:1"): series(name, "gpu:1", time_ns, value, status=status)
        for name in ("util_frac", "power_w")
    }
    finding = only(hardware_findings(Samples(node="n", source="test", series=made)))
    assert "was lost" in finding.title
    assert finding.evidence[0].windows[0].start_ns == time_ns[2]


def test_xids_are_told_apart_by_what_they_mean() -> None:
    events = [
        SampleEvent(START_NS, "gpu:0", "xid", 79),
        SampleEvent(START_NS, "gpu:0", "xid", 31),
        SampleEvent(START_NS, "gpu:0", "xid", 45),  # a program was stopped: no fault
        SampleEvent(START_NS, "gpu:0", "ecc_corrected", 0),
    ]
    found = hardware_findings(loaded({}, events=events))
    assert [(f.severity, f.title.split("(")[-1]) for f in found] == [
        ("critical", "Xid 79)"),
        ("warning", "Xid 31)"),
    ]


def test_a_kernel_log_is_joined_by_the_pci_address() -> None:
    log = parse_xids(["[ 1.5] NVRM: Xid (PCI:0000:19:00): 48, An uncorrectable double bit error"])
    finding = only(hardware_findings(loaded({}), log.events))
    assert finding.title.startswith("GPU 0 of n:")
    assert "double bit" in finding.evidence[0].text


def test_an_unknown_xid_is_said_to_be_unknown() -> None:
    finding = only(hardware_findings(loaded({}, events=[SampleEvent(1, "gpu:0", "xid", 9999)])))
    assert "does not know" in finding.title


# ---- memory --------------------------------------------------------------------------------


def test_memory_that_grows_to_the_end_is_a_leak() -> None:
    used = [(30 + 0.05 * k) * 2**30 for k in range(N)]
    finding = only(memory_findings(loaded({("mem_used_bytes", "gpu:0"): used})))
    assert finding.cause == "memory-pressure"
    assert "keeps growing" in finding.title


def test_memory_that_levels_off_is_warm_up() -> None:
    used = [(30 + 0.05 * min(k, 100)) * 2**30 for k in range(N)]
    assert memory_findings(loaded({("mem_used_bytes", "gpu:0"): used})) == []


def test_memory_that_comes_and_goes_is_no_leak() -> None:
    used = np.array([(30 + 5 * np.sin(k / 9)) for k in range(N)])
    assert growth(np.arange(N, dtype=np.int64) * 10**8, used) is None


def test_full_memory_is_told_without_alarm() -> None:
    full = loaded({("mem_used_bytes", "gpu:0"): [79.0 * 2**30] * N})
    assert only(memory_findings(full)).severity == "info"


def test_host_memory_shared_memory_and_kills() -> None:
    values = {
        ("mem_available_bytes", "host"): [2.0**30] * N,
        ("mem_total_bytes", "host"): [100 * 2.0**30] * N,
        ("shm_free_bytes", "host"): [2.0**20] * N,
        ("shm_total_bytes", "host"): [64 * 2.0**20] * N,
        ("cgroup_oom_kills", "host"): [0.0] * 100 + [1.0] * 100,
        ("pressure_mem_some_s", "host"): ramp(0.3),
    }
    found = memory_findings(samples(values))
    assert [f.severity for f in found] == ["warning", "critical", "warning", "critical"]
    assert {f.cause for f in found} == {"memory-pressure"}


# ---- real logs -----------------------------------------------------------------------------


@pytest.mark.skipif(not CASES.is_dir(), reason="the real logs are not here")
def test_real_logs() -> None:
    """Rows waiting for a reset on the A10; two healthy cards; GSP timeouts; contained ECC."""
    by_name = {
        path.name: hardware_findings(read_smi(path)) for path in sorted((CASES / "smi").iterdir())
    }
    titles = {name.rpartition(".")[2]: [f.title for f in found] for name, found in by_name.items()}
    assert titles["a10"] == ["GPU 0: broken memory rows wait for a reset to be replaced"]
    assert titles["invalid"] == titles["valid"] == []
    empty = Samples(node="", source="test")
    faults = [
        sorted(f.title.rpartition("(")[2] for f in hardware_findings(empty, read_xids(path).events))
        for path in sorted((CASES / "xid").iterdir())
    ]
    assert sorted(faults) == [[], ["Xid 119)"], ["Xid 48)", "Xid 63)", "Xid 94)"]]
