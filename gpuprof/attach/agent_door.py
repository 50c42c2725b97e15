"""Part of the agent's text: whether this process is one to record, who it is, and how the agent
talks with gpuprof: by JSON files in the mailbox, renamed into place.

Like all parts: standard library only, Python 3.8 and newer; see `agent`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MARK = "_gpuprof_attached"
MOST_ERRORS = 20


class Refused(Exception):  # noqa: N818
    """Why this process is not entered, in one word."""


class Mail:
    """The mailbox, as seen from inside. errors: what went wrong, each once."""

    def __init__(self, box: str) -> None:
        self.box = box
        self.errors: list[str] = []

    def path(self, name: str) -> str:
        return os.path.join(self.box, name)

    def put(self, name: str, value: Any) -> None:
        """Says a word; what the disk refuses is noted."""
        path = self.path(name)
        try:
            with open(path + ".part", "w") as file:
                json.dump(value, file)
            os.rename(path + ".part", path)
        except (OSError, ValueError) as error:
            self.error(f"could not write {name}: {getattr(error, 'strerror', error)}")

    def get(self, name: str) -> Any:
        """A word of gpuprof's.

        Raises:
            OSError, ValueError: there is none.
        """
        with open(self.path(name)) as file:
            return json.load(file)

    def has(self, name: str) -> bool:
        return os.path.exists(self.path(name))

    def lease(self) -> int:
        """Changes as long as somebody listens."""
        try:
            return os.stat(self.path("lease")).st_mtime_ns
        except OSError:
            return 0

    def error(self, text: str) -> None:
        """Notes what went wrong, once."""
        if text not in self.errors and len(self.errors) < MOST_ERRORS:
            self.errors.append(text)

    def clear(self) -> None:
        """Removes the mailbox."""
        try:
            for name in os.listdir(self.box):
                os.unlink(self.path(name))
            os.rmdir(self.box)
        except OSError:
            return  # somebody has removed it already


def welcome(box: str) -> Any:
    """Marks this process as attached to, and returns its torch.

    Raises:
        Refused: it is not to be recorded.
    """
    other = getattr(sys, MARK, None)
    if other is not None and other[0] == os.getpid():
        raise Refused("busy")
    torch = sys.modules.get("torch")
    if torch is None:
        raise Refused("no-torch")
    if "torch.profiler" not in sys.modules or not hasattr(torch, "__version__"):
        raise Refused("importing")
    own = sys.modules.get("gpuprof.recording")
    if own is not None and own.Session.current is not None:
        raise Refused("session")
    setattr(sys, MARK, (os.getpid(), box))
    return torch


def unmark(box: str) -> None:
    if getattr(sys, MARK, (0, ""))[1] == box:
        delattr(sys, MARK)


def who(torch: Any) -> dict[str, Any]:
    """What only this process knows of itself. No device is touched that it has not touched."""
    version = torch.version
    found: dict[str, Any] = {
        "torch": str(torch.__version__),
        "cuda": str(getattr(version, "cuda", None) or getattr(version, "hip", None) or ""),
        "gpus": [],
    }
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        found["rank"] = int(distributed.get_rank())
        found["world_size"] = int(distributed.get_world_size())
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        device = int(cuda.current_device())
        facts = cuda.get_device_properties(device)
        uuid = str(getattr(facts, "uuid", "") or "")
        if uuid and not uuid.startswith(("GPU-", "MIG-")):
            uuid = "GPU-" + uuid
        found["gpus"] = [{"index": device, "name": str(facts.name), "uuid": uuid}]
    return found
