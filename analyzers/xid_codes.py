"""What the driver's Xid numbers mean for a training job, and what to do about each.

From NVIDIA's public Xid documentation. kind: "hardware" (the device or its links), "driver" (the
driver or the GPU's own processor hung), "application" (a fault of the program on the GPU) or
"info".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["hardware", "driver", "application", "info"]


@dataclass(frozen=True, slots=True)
class XidMeaning:
    """One code: its kind, what happened, what to do."""

    kind: Kind
    what: str
    action: str


_RESET = (
    "Drain the node and reset the GPU (nvidia-smi --gpu-reset) or reboot; replace it if it recurs."
)
_DEBUG = "Look for a fault in the program: run it with compute-sanitizer or CUDA_LAUNCH_BLOCKING=1."
_NODE = "Take the node out of the job, reboot it, and check the card's seating, power and PCIe."

XIDS: dict[int, XidMeaning] = {
    13: XidMeaning("application", "a kernel raised an exception", _DEBUG),
    31: XidMeaning("application", "a kernel touched memory that it does not own", _DEBUG),
    32: XidMeaning("driver", "corrupt commands reached the GPU over PCIe", _NODE),
    38: XidMeaning("driver", "the driver's firmware failed", _RESET),
    43: XidMeaning("application", "a program's GPU context was reset", _DEBUG),
    44: XidMeaning("driver", "the graphics engine faulted on a context switch", _RESET),
    45: XidMeaning("info", "a program's work was stopped, mostly because it ended", ""),
    46: XidMeaning("driver", "the GPU stopped processing", _RESET),
    48: XidMeaning("hardware", "memory had an uncorrectable (double-bit) error", _RESET),
    61: XidMeaning("driver", "the GPU's microcontroller stopped", _RESET),
    62: XidMeaning("driver", "the GPU's microcontroller halted", _RESET),
    63: XidMeaning(
        "hardware",
        "a broken memory row was marked for replacement",
        "Reset the GPU at the next chance: the replacement becomes active only then.",
    ),
    64: XidMeaning("hardware", "a broken memory row could not be replaced", "Replace the GPU."),
    68: XidMeaning("application", "the video decoder raised an exception", _DEBUG),
    69: XidMeaning("application", "the graphics engine raised an exception", _DEBUG),
    74: XidMeaning("hardware", "an NVLink had an error", "Check links and fabric, reset the GPUs."),
    79: XidMeaning("hardware", "the GPU fell off the bus", _NODE),
    92: XidMeaning("hardware", "correctable memory errors came at a high rate", _RESET),
    94: XidMeaning(
        "hardware",
        "an uncorrectable memory error hit one program and was contained",
        "Restart the job; reset the GPU when it is free, so that the row is replaced.",
    ),
    95: XidMeaning("hardware", "an uncorrectable memory error was not contained", _RESET),
    109: XidMeaning("driver", "a context switch timed out", _RESET),
    119: XidMeaning("driver", "the GPU's system processor (GSP) did not answer", _RESET),
    120: XidMeaning("driver", "the GPU's system processor (GSP) failed", _RESET),
    121: XidMeaning("hardware", "the link to the CPU (C2C) had an error", _RESET),
    140: XidMeaning("hardware", "an ECC error was not recovered", _RESET),
    143: XidMeaning("driver", "the GPU could not be initialized", _RESET),
    154: XidMeaning("info", "the driver says how the GPU has to be recovered", ""),
}


def meaning(code: int) -> XidMeaning:
    """What a code means; an unknown one is taken for the driver's own fault, and says so."""
    return XIDS.get(
        code,
        XidMeaning("driver", "an error that this version does not know", "Look the code up."),
    )
