"""Facts of a log that decide between two meanings of the same message."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from gpuprof.commlog import CommLog, Event

PORT_EVENT = re.compile(r"Got (?:async|non-fatal async) (?:error )?event ?: ?(?:port error|GID)")


@dataclass(frozen=True)
class Facts:
    """Derived facts, each computed once a log."""

    log: CommLog

    @cached_property
    def versions(self) -> frozenset[str]:
        return frozenset(row.version for row in self.log.versions if row.stated)

    @cached_property
    def variables(self) -> dict[str, str]:
        """Variable to its value (the last one read), over all processes and bare texts."""
        found = {setting.variable: setting.value for setting in self.log.env}
        for event in self.log.events:
            if event.level == "BARE":
                for variable, value in re.findall(r"\b(NCCL_[A-Z0-9_]+)=(\S+)", event.text):
                    found.setdefault(variable, value.rstrip(",;.)"))
        return found

    @cached_property
    def roce(self) -> bool:
        """The job's RDMA devices are Ethernet ports."""
        devices = [fact.fields.get("devices", "") for fact in self.log.facts_of("rdma_devices")]
        return any("/RoCE" in text for text in devices) and not any("/IB" in t for t in devices)

    @cached_property
    def port_events(self) -> bool:
        return any(PORT_EVENT.search(event.text) for event in self.log.events)

    @cached_property
    def first_complete(self) -> int | None:
        """Line of the first communicator that was complete on any rank."""
        lines = [line for comm in self.log.communicators for line in comm.completed.values()]
        return min(lines) if lines else None

    @cached_property
    def p2p_limited(self) -> bool:
        names = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE")
        return any(self.variables.get(name) in ("1", "LOC", "0") for name in names)

    @cached_property
    def imex(self) -> bool:
        return any("IMEX" in event.text or "MNNVL" in event.text for event in self.log.events)


Condition = Callable[[Event, Facts], bool]

CONDITIONS: dict[str, Condition] = {
    "versions_differ": lambda _event, facts: len(facts.versions) > 1,
    "one_version_or_none": lambda _event, facts: len(facts.versions) <= 1,
    "ifname_set": lambda _event, facts: "NCCL_SOCKET_IFNAME" in facts.variables,
    "comm_id_set": lambda _event, facts: "NCCL_COMM_ID" in facts.variables,
    "roce": lambda _event, facts: facts.roce,
    "port_events": lambda _event, facts: facts.port_events,
    "gid_index_set": lambda _event, facts: "NCCL_IB_GID_INDEX" in facts.variables,
    "p2p_limited": lambda _event, facts: facts.p2p_limited,
    "no_communicator": lambda _event, facts: not facts.log.communicators,
    "imex_in_log": lambda _event, facts: facts.imex,
    "release_2_19": lambda _event, facts: any(
        row.version.startswith("2.19.") for row in facts.log.versions
    ),
    "second_communicator_fails": lambda event, facts: (
        facts.first_complete is not None and event.line > facts.first_complete
    ),
}
