"""The one exception that gpuprof raises for a fault that the user can mend.

    GpuprofError        one line: what is wrong, where, and what to do; exit status 2
    └── InputError      a file or folder that cannot be read as what it was taken for

Everything else that escapes is a fault of gpuprof itself (exit status 1).
"""

from __future__ import annotations


class GpuprofError(Exception):
    """A mistake or a missing thing that the user can mend.

    Args:
        message: One line that says what is wrong and where.
        hint: One line that says what to do about it; empty when nothing can be done.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = " ".join(message.split())
        self.hint = " ".join(hint.split())

    def __str__(self) -> str:
        return f"{self.message}: {self.hint}" if self.hint else self.message


class InputError(GpuprofError):
    """An input that cannot be read: missing, empty, foreign or damaged beyond salvage."""
