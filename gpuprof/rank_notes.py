"""What one process says of its recording: a record in the run directory, one line for the user.

Nothing in here reaches the user's loop. A failure is kept in the record and said in one line, the
first only; what can still be recorded is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuprof import process, run, run_writer

log = logging.getLogger("gpuprof")


class RankNotes:
    """The record of this process, and whether it has told the user of a failure.

    own: whether the folder is this process's to write into. called_lines: what the record names as
    lines that were seen to be called, once something looks for them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.record = run.RankRecord()
        self.own = self.said = False
        self.called_lines: Callable[[], list[run.CallLine]] | None = None

    def take_folder(self, *, launched: bool) -> None:
        """Makes the folder ours, clears what an earlier job left, and writes the first record.

        Args:
            launched: `gpuprof run` leads the job, so clearing and the manifest are its own.

        Raises:
            OSError: it can't be written, or another process of this job has this rank.
        """
        record, folder = self.record, self.folder
        run_writer.claim_rank(folder, record.rank, record.job)
        if record.local_rank == 0 and not launched:
            run_writer.clear_older(folder, process.job_started_unix_s(), process.host_name())
        self.own = True
        self.save()
        if record.rank == 0 and not launched:
            manifest = run.Manifest(
                job=record.job,
                command=record.command,
                world_size=record.world_size,
                started_unix_s=record.started_unix_s,
                hosts=[record.host],
            )
            run_writer.write_record(folder / run.MANIFEST, manifest)

    def save(self) -> None:
        """Writes the record as it is now."""
        if self.called_lines is not None:
            self.record.call_lines = self.called_lines()
        if self.own:
            with self.guard(f"write into {self.folder}"):
                run_writer.write_record(self.folder / run.rank_file(self.record.rank), self.record)

    @contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Keeps whatever goes wrong inside away from the user's loop."""
        try:
            yield
        except Exception as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            self.failed(what, reason)

    def failed(self, what: str, reason: str) -> None:
        """Notes a failure, and says it if it is the first."""
        text = f"could not {what}: {reason}"
        if self.record.fail(text):
            self.say(text)

    def failed_as_said(self, text: str) -> None:
        """Notes a failure that the user has been told of already."""
        self.said = True
        self.record.fail(text)

    def say(self, text: str) -> None:
        """One line for the user; only the first, the others are in the record."""
        log.log(
            logging.DEBUG if self.said else logging.WARNING, "gpuprof: %s; training goes on", text
        )
        self.said = True
