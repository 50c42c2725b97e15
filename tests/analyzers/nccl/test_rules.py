# ruff: noqa: E501 (lines of logs and tables are quoted whole)
"""What each known message means: one row a wording, over releases and frameworks."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprof.analyzers.nccl.rules import load_rules
from gpuprof.analyzers.nccl_causes import cause_classes, findings_from_commlog
from gpuprof.readers.nccl_log import read_nccl_log

P = "node1:1000:1001 [0] "

MESSAGES: list[tuple[str, str]] = [
    (P + "misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9637892 bytes, error: No space left on device (28)", "shm_too_small"),
    (P + "include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-1-2-3 (size 9637888)", "shm_too_small"),
    (P + "transport/shm.cc:590 NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'", "cumem_host"),
    (P + "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory errno 12", "memlock"),
    (P + "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr failed", "memlock"),
    (P + "transport/net_ib.cc:839 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129", "roce_gid"),
    (P + "transport/net_ib/p2p.cc:90 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4001> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Send", "roce_gid"),
    (P + "transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4001> with status=4 opcode=129 len=0 vendor err 81 (Recv)", "acs_gdr"),
    (P + "transport/net_ib.cc:80 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4001> with error 5, opcode 48, len 0, vendor err 249", "mtu_mismatch"),
    (P + "transport/net_ib.cc:90 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error", "ib_link_flap"),
    (P + "transport/net_ib.cc:90 NCCL WARN NET/IB : mlx5_0:1 Got non-fatal async event: GID table change(18)", "ib_link_flap"),
    (P + "misc/ibvwrap.cc:340 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out errno 110", "rail_cross_nic"),
    (P + "misc/ibvwrap.cc:340 NCCL WARN ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.0.0.1, remote GID ::ffff:10.1.0.2", "rail_cross_nic"),
    (P + "misc/ibvwrap.cc:340 NCCL WARN ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT, next state RTR, local GID index 0, local GID fe80::1, remote GID ::ffff:10.1.0.2", "roce_gid"),
    (P + "misc/ibvwrap.cc:340 NCCL WARN Call to ibv_modify_qp failed with error No such device", "rdma_device_missing"),
    (P + "init.cc:521 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1c000", "duplicate_gpu"),
    (P + "init.cc:521 NCCL WARN Multiple Ranks are using the same GPU/Partition: rank 1 and rank 0", "duplicate_gpu"),
    (P + "transport/nvls.cc:169 NCCL WARN Cuda failure 1 'invalid argument'", "fabric_manager"),
    (P + "transport/nvls.cc:169 NCCL WARN Cuda failure 2 'out of memory'", "gpu_out_of_memory"),
    ("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401", "fabric_manager"),
    ("Test CUDA failure common.cu:941 'system not yet initialized'", "fabric_manager"),
    (P + "init.cc:88 NCCL WARN Mismatched NCCL version detected : rank 0 version 22304 rank 8 version 22005", "version_mismatch"),
    (P + "bootstrap.cc:77 NCCL WARN Message truncated : received 256 bytes instead of 4", "version_mismatch"),
    ("ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)", "version_mismatch"),
    (P + "bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found", "no_ip_interface"),
    (P + "bootstrap.cc:45 NCCL WARN no device found matching eth7, verify NCCL_SOCKET_IFNAME", "ifname_not_found"),
    ("NCCL WARN No interface found in the same subnet as remote address 10.1.2.3<4>", "comm_id_subnet"),
    (P + "misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 127.0.0.1<45069> failed : Software caused connection abort", "nic_loopback"),
    (P + "misc/socket.cc:483 NCCL WARN Net : Connect to 172.17.0.1<45069> failed : Connection refused", "nic_wrong_interface"),
    (P + "misc/socket.cc:483 NCCL WARN socketPollConnect: connect to 10.0.0.2<45069> returned No route to host, exceeded error retry count (35)", "unreachable_peer"),
    (P + "get_ofi_provider:312 NCCL WARN NET/OFI Couldn't find any optimal provider", "plugin_fallback_socket"),
    (P + "nccl_net_ofi_rdma_init:7978 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data available", "rdma_device_missing"),
    (P + "mnnvl.cc:67 NCCL WARN MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX channel configuration", "imex"),
    (P + "enqueue.cc:1500 NCCL WARN Cuda failure 1 'invalid argument'", "nccl_bug_version"),
    (P + "enqueue.cc:1500 NCCL WARN Cuda failure 'uncorrectable ECC error encountered'", "gpu_fault"),
    (P + "enqueue.cc:1500 NCCL WARN HIP failure 'out of memory'", "gpu_out_of_memory"),
    (P + "misc/socket.cc:400 NCCL WARN Call to socket failed : Too many open files", "fd_limit"),
    (P + "enqueue.cc:500 NCCL WARN Error : no algorithm/protocol available", "env_disables_algorithm"),
    (P + "transport/p2p.cc:293 NCCL WARN failed to open CUDA IPC handle : 11 invalid argument", "host_identity"),
    (P + "graph/xml.cc:332 NCCL WARN Could not find real path of /sys/class/pci_bus/0000:21/../../0000:21:00.0", "wsl_unsupported"),
    (P + "transport/net_ib.cc:1038 NCCL WARN NET/IB : req 0/1 tag 0 peer 10.0.0.2<5> collective mismatch error, local size 496640 remote size 65536", "env_mismatch"),
    ("init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 39.", "collective_mismatch"),
    ("RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[10]), but Rank 1 is running collective: CollectiveFingerPrint(OpType=ALLREDUCE, TensorShape=[12]).", "collective_mismatch"),
    ("ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress in monitoring enqueued collectives.", "teardown_order"),
    ("\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-", "acs_iommu"),
    ("[HAMI-core Msg(1:140:libvgpu.c:836)]: Initializing.....", "cuda_interposer_hang"),
]  # fmt: skip

BENIGN_LINES: list[str] = [
    P + "misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]",
    P + "proxy.cc:1458 NCCL WARN [Service thread] Accept failed Resource temporarily unavailable",
    P + "proxy.cc:1521 NCCL WARN [Proxy Service 7] Failed to execute operation Close from rank 7, retcode 3",
    P + "NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.",
    P + "NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation",
    P + "NCCL INFO 16 coll channels, 0 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer",
    P + "NCCL INFO NVLS multicast support is not available on dev 0",
    P + 'rocmwrap.cc:99 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system instability or hang!',
    P + "transport.cc:253 NCCL WARN Cannot initialize CollNet, using point-to-point network instead",
]  # fmt: skip


def read(path: Path, text: str) -> tuple[str, ...]:
    path.write_text(text + "\n")
    findings = findings_from_commlog(read_nccl_log(path))
    return cause_classes(findings[0]) if findings else ()


@pytest.mark.parametrize(("line", "kind"), MESSAGES, ids=lambda value: value[-40:])
def test_message_is_answered_with_its_class(tmp_path: Path, line: str, kind: str) -> None:
    assert read(tmp_path / "nccl.log", line)[:1] == (kind,)


@pytest.mark.parametrize("line", BENIGN_LINES, ids=lambda value: value[-40:])
def test_benign_line_gives_no_finding(tmp_path: Path, line: str) -> None:
    assert read(tmp_path / "nccl.log", line) == ()


def test_rule_table_is_well_formed() -> None:
    """Ids are unique, causes say what they mean and what to do, conditions exist."""
    from gpuprof.analyzers.nccl.conditions import CONDITIONS

    rules = [rule for rule, _, _ in load_rules()]
    assert len({rule.id for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule.when) <= set(CONDITIONS), rule.id
        if rule.role == "cause":
            assert rule.classes and rule.title and rule.meaning and rule.fixes, rule.id
            assert rule.cause in {"nccl-config", "hang", "hardware-fault", "nccl-wait"}, rule.id


def test_garbage_family_with_interface_variable_is_a_wrong_interface(tmp_path: Path) -> None:
    """The same text means another thing when the environment names an interface."""
    text = (
        P + "NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth2\n"
        "Last error:\n"
        "ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)"
    )
    assert read(tmp_path / "nccl.log", text)[0] == "ifname_not_found"


def test_no_answer_after_port_events_is_their_consequence(tmp_path: Path) -> None:
    text = (
        P
        + "transport/net_ib.cc:839 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129\n"
        "node2:5:6 [0] transport/net_ib.cc:90 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error"
    )
    assert read(tmp_path / "nccl.log", text)[0] == "ib_link_flap"


def test_truncated_bootstrap_message_is_a_defect_of_one_release(tmp_path: Path) -> None:
    """2.19.x is known for it; other releases are not accused."""
    warn = P + "bootstrap.cc:77 NCCL WARN Message truncated : received 256 bytes instead of 4"
    for version, kind in (("2.19.3", "nccl_bug_version"), ("2.12.10", "version_mismatch")):
        text = f"NCCL version {version}+cuda12.2\n{warn}"
        assert read(tmp_path / "nccl.log", text)[0] == kind
