"""A diagnosis in a TensorBoard log directory: scalars, one text, and the report for the plugin.

Written with TensorBoard's own event writer; neither torch nor TensorFlow is needed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuprof.analyzers.account import RankAccount
from gpuprof.diagnosis import Diagnosis, to_json
from gpuprof.errors import GpuprofError
from gpuprof.reports.html import write_html
from gpuprof.reports.markdown import to_markdown
from gpuprof.samples import Samples
from gpuprof.trace import Trace

REPORT_NAME = "report.html"
JSON_NAME = "diagnosis.json"

SUFFIX = ".gpuprof"
"""What our event files end with: an export replaces those of the one before it, and no others."""

MAX_STEPS = 10_000
"""Steps that are written as scalars: TensorBoard itself shows 1000 of a series."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value of a series. step: number of the recorded step, from 0."""

    tag: str
    step: int
    value: float


def scalars(diagnosis: Diagnosis) -> Iterator[Scalar]:
    """What is written: the length of every step (mean over the ranks), the shares of the step
    budget, and for each finding its share and its gain as a share of the step."""
    series = [rank.step_ms for rank in diagnosis.ranks if rank.step_ms]
    for step in range(min(min((len(one) for one in series), default=0), MAX_STEPS)):
        mean = sum(one[step] for one in series) / len(series)
        yield Scalar("gpuprof/step_ms", step, mean)
    for bucket, share in diagnosis.budget.items():
        yield Scalar(f"gpuprof/budget/{bucket}", 0, share)
    for finding in diagnosis.findings:
        yield Scalar(f"gpuprof/share/{finding.cause}", 0, finding.share)
        if finding.gain is not None:
            yield Scalar(f"gpuprof/gain/{finding.cause}", 0, finding.gain.reduction)
    if diagnosis.together is not None:
        yield Scalar("gpuprof/gain/together", 0, diagnosis.together.reduction)


def write_tensorboard(
    diagnosis: Diagnosis,
    traces: Sequence[Trace],
    logdir: str | os.PathLike[str],
    *,
    lang: str = "en",
    accounts: Sequence[RankAccount] = (),
    samples: Sequence[Samples] = (),
) -> Path:
    """Writes events, `report.html` and `diagnosis.json` into a log directory.

    Args:
        traces, lang, accounts, samples: As for `write_html`.
        logdir: The folder of one run below TensorBoard's `--logdir`, or that itself.

    Returns:
        The folder.

    Raises:
        GpuprofError: tensorboard is not installed, or the folder can't be written.
    """
    try:
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
        from tensorboard.plugins.scalar import metadata as scalar_metadata
        from tensorboard.plugins.text import metadata as text_metadata
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise GpuprofError(
            f"tensorboard can't be used here ({error})",
            hint="pip install 'gpuprof-toolkit[tensorboard]'",
        ) from error
    folder = Path(logdir)
    now = time.time()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = [path for path in folder.glob(f"events.out.tfevents.*{SUFFIX}") if path.is_file()]
        writer = EventFileWriter(str(folder), filename_suffix=SUFFIX)
        try:
            for scalar in scalars(diagnosis):
                tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, float_val=[scalar.value])
                value = summary_pb2.Summary.Value(
                    tag=scalar.tag,
                    tensor=tensor,
                    metadata=scalar_metadata.create_summary_metadata("", ""),
                )
                summary = summary_pb2.Summary(value=[value])
                writer.add_event(event_pb2.Event(wall_time=now, step=scalar.step, summary=summary))
            document = to_markdown(diagnosis, lang=lang).encode("utf-8", "replace")
            value = summary_pb2.Summary.Value(
                tag="gpuprof/findings",
                tensor=tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[document]),
                metadata=text_metadata.create_summary_metadata("", ""),
            )
            summary = summary_pb2.Summary(value=[value])
            writer.add_event(event_pb2.Event(wall_time=now, step=0, summary=summary))
        finally:
            writer.close()
        for path in before:  # else every value would be there twice
            path.unlink(missing_ok=True)
        (folder / JSON_NAME).write_bytes(to_json(diagnosis))
    except OSError as error:
        raise GpuprofError(
            f"cannot write to {folder}: {error.strerror or error}",
            hint="choose another place with --out",
        ) from error
    page = folder / REPORT_NAME
    write_html(diagnosis, traces, page, lang=lang, accounts=accounts, samples=samples)
    return folder
