"""Training stops while a checkpoint is written.

What it finds: idle time of the device while the training thread is inside `torch.save`,
`torch.distributed.checkpoint`, safetensors or a region named as writing a checkpoint, and the
copies to the host that are made there.

Why it costs: the state is copied to the host, serialized by one core and written to a disk or a
network file system, and until all of it is done no kernel is launched. It shows as long valleys
that come back every so many steps.

How it is measured: idle time is charged to what the host did since it began; copies launched inside
a save that nothing hides are added. The gain is the replay of the recorded steps with the saves
taken out. It holds for the recorded window: a save in a window of ten steps weighs more there than
in a run that saves every thousand. So the length of one save is said beside it.

How to fix: write in the background, copy to the host first; save less often; each rank its own
shard, or rank 0 alone where all hold the same; a local disk.

Limits: writing a file runs no operator. A save shows only where Python calls were recorded
(`with_stack=True`) or where it was named (`gpuprof.annotate("checkpoint")`, `record_function`). A
window without a save says nothing of the steps outside it; gpuprof's own recording times all saves
of the run: it names them without a gain, and knows when a window holds more of them than the run
does. Activation checkpointing writes nothing and is no save.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.causes.base import (
    CERTAIN,
    Cause,
    Verdict,
    confidence,
    explained,
    finding,
    held_open,
    too_little,
)
from gpuprof.analyzers.copies import exposed_ns, find_copies
from gpuprof.analyzers.intervals import Spans, empty, merge
from gpuprof.analyzers.places import lines_within, records_lines
from gpuprof.analyzers.recorded_window import RecordedWindow, with_called_lines
from gpuprof.analyzers.run_view import LEAST_GAIN, RunView
from gpuprof.analyzers.wording import in_bytes, milliseconds, percent, significant
from gpuprof.counted import agrees, counted
from gpuprof.diagnosis import Evidence, Fix, NotJudged, Place, RuledOut
from gpuprof.distinct import is_in
from gpuprof.trace import Category

I64 = NDArray[np.int64]

ID = "checkpoint"

HOW = "the recorded steps replayed without the saves in them"

USUAL_LOSS = 0.01
"""Saving that takes 1 % of the time is cheap enough. Young (A first order approximation to the
optimum checkpoint interval, 1974) puts the best interval at sqrt(2 × save × time between failures):
for a save of 5 s and a failure a day 930 s, which is 0.5 % for saving and as much for repeated
work."""


CPU_BACKEND = '# async_save needs torch.distributed.init_process_group("cpu:gloo,cuda:nccl")'
"""It refuses a process group that has a back end for the device alone."""


@dataclass(frozen=True, slots=True)
class _Saves:
    """The steps of a rank in which checkpoints were written.

    step: index of each step with a save, ascending, (n,). wall_ns: time spent in saves in each,
    (n,). bytes: copied to the host inside saves of the accounted steps, 0 where nothing was.
    """

    step: I64
    wall_ns: I64
    bytes: int

    def __len__(self) -> int:
        return len(self.step)

    @property
    def mean_ms(self) -> float:
        return float(self.wall_ns.mean()) / 1e6

    @property
    def period(self) -> int | None:
        """Steps from one save to the next; None with fewer than two saves."""
        return round(float(np.diff(self.step).mean())) if len(self.step) > 1 else None


def judge(run: RunView) -> Verdict:
    """Judges cause 8."""
    saves = [_saves(rank) for rank in run.ranks]
    if not any(len(each) for each in saves):
        return _without_saves(run)
    shares = [_share(rank) for rank in run.ranks]
    charged = float(np.mean(shares))
    share = run.share_behind_waits(charged, "checkpoint")
    if share < run.named_from:
        first = max(saves, key=len)
        return RuledOut(
            cause=ID,
            why=too_little("idle while a checkpoint is written", share, run)
            + f" ({_number(first)} in the recorded steps, {milliseconds(first.mean_ms)} each)",
            share=share,
        )
    gain = run.price("checkpoint")
    if gain is not None and gain.reduction < LEAST_GAIN:
        return RuledOut(
            cause=ID,
            why=f"checkpoints hold {percent(share)} of the step, but without them it would be only"
            f" {percent(gain.reduction)} shorter: other work comes out",
            share=share,
        )
    worst = int(np.argmax(shares))
    rank, mine = run.ranks[worst], saves[worst]
    whole = run.told.get(rank.rank)
    if whole is None or whole.saves < len(mine) or not whole.lasted_ms:
        whole = None  # not all of them go through calls that the recorder times
    elif whole.saving_frac < run.named_from:
        return RuledOut(
            cause=ID,
            why=f"checkpoints hold {percent(share)} of the recorded steps, but in the whole run"
            f" saving took {percent(whole.saving_frac)} of the time ({_timed(whole)})",
            share=whole.saving_frac,
        )
    # One save in the window proves the pause, but not how often it comes.
    certain = CERTAIN if mine.period is not None else 0.85
    title = f"Training stops for checkpoints {percent(share)} of the recorded time"
    if share > charged:
        title = f"Checkpoints keep other waits, {percent(share)} of the step, from being hidden"
    return finding(
        ID,
        title,
        share=share,
        gain=explained(gain, HOW),
        confidence=confidence(run, share, gain, certain=certain),
        evidence=[
            *held_open(share, charged),
            *_evidence(run, rank, saves, worst, charged),
            *([_in_the_run(whole)] if whole is not None else []),
        ],
        fixes=_fixes(run, saves, mine),
        where=with_called_lines(_where(rank.lines), run.told, rank.rank, "checkpoint"),
        ranks=tuple(
            r.rank for r, held in zip(run.ranks, shares, strict=True) if held >= run.named_from
        ),
    )


def _outside_the_window(run: RunView) -> Verdict | None:
    """Saves that gpuprof's recorder timed in the run, none of them in the analyzed window; None
    where it timed none. How often they come is in no trace, so no replay prices them."""
    timed = [window for window in run.told.values() if window.saves and window.lasted_ms > 0]
    if not timed:
        return None
    worst = max(timed, key=lambda window: window.saving_frac)
    share = min(worst.saving_frac, 1.0)
    each = _timed(worst)
    if share < run.named_from:
        return RuledOut(
            cause=ID,
            why=f"no checkpoint was written in the recorded steps, and in the whole run saving took"
            f" {percent(share)} of the time ({each})",
            share=share,
        )
    nothing = _Saves(np.zeros(0, np.int64), np.zeros(0, np.int64), 0)
    return finding(
        ID,
        f"Training stops for checkpoints {percent(share)} of the run",
        share=share,
        gain=None,
        confidence=confidence(run, share, None),
        evidence=[
            Evidence(
                text=f"The training thread was inside saves {percent(share)} of the run of rank"
                f" {worst.rank} ({each}); none of them is in the recorded window, so their removal"
                " was not replayed.",
                value=round(share, 4),
                unit="share of run",
                source="host",
            )
        ],
        fixes=_fixes(run, [nothing for _ in run.ranks], nothing),
        where=with_called_lines((), run.told, worst.rank, "checkpoint"),
        ranks=tuple(w.rank for w in timed if w.saving_frac >= run.named_from),
    )


def _timed(window: RecordedWindow) -> str:
    """The saves of a run that its recorder timed: "4 saves, 500.0 ms each"."""
    number = "one save" if window.saves == 1 else f"{window.saves} saves"
    return f"{number}, {milliseconds(window.saving_ms / window.saves)} each"


def _in_the_run(window: RecordedWindow) -> Evidence:
    share = min(window.saving_frac, 1.0)
    return Evidence(
        text=f"In the whole run saving took {percent(share)} of the time ({_timed(window)}).",
        value=round(share, 4),
        unit="share of run",
        source="host",
    )


def _without_saves(run: RunView) -> Verdict:
    outside = _outside_the_window(run)
    if outside is not None:
        return outside
    idle = run.share("host", "unknown", "sync")
    if idle < run.named_from:
        return RuledOut(
            cause=ID,
            why=f"all that the host holds the device up for is {percent(idle)} of the recorded"
            " steps: no checkpoint can have cost more in them",
            share=run.share("checkpoint"),
        )
    if any(_would_show(rank) for rank in run.ranks):
        text = "no checkpoint was written in the recorded steps"
        if run.facts.recomputes:
            text += " (activation checkpointing, which is in use, writes nothing)"
        return RuledOut(cause=ID, why=text, share=0.0)
    return NotJudged(
        cause=ID,
        missing="nothing that was recorded would show a checkpoint being written: it looks like any"
        f" of the host work that holds {percent(idle)} of the step",
        command='name it in the code, `with gpuprof.annotate("checkpoint"): torch.save(…)`, or'
        " record with `with_stack=True`",
    )


def _would_show(rank: RankAccount) -> bool:
    """Whether `torch.save` would have left a trace: Python calls were recorded, or gpuprof's own
    session, which names it."""
    python = bool((rank.trace.category == Category.PYTHON).any())
    return python or rank.main.steps.source == "session"


def _spans(rank: RankAccount) -> Spans:
    lanes = list(rank.host.spans["checkpoint"].values())
    return merge(*lanes) if lanes else empty()


def _saves(rank: RankAccount) -> _Saves:
    spans, steps = _spans(rank), rank.main.steps
    if not len(spans) or not len(steps):
        return _Saves(np.zeros(0, np.int64), np.zeros(0, np.int64), 0)
    step = np.searchsorted(steps.host_start_ns, spans.start, side="right") - 1
    inside = (step >= 0) & (spans.start < steps.host_end_ns[-1])
    inside &= steps.keep[np.clip(step, 0, len(steps) - 1)]
    in_step, which = np.unique(step[inside], return_inverse=True)
    wall = np.zeros(len(in_step), np.int64)
    np.add.at(wall, which, spans.lengths[inside])
    copies = find_copies(rank)
    outward = copies.of(copies.in_checkpoint & ~copies.inward)
    return _Saves(in_step.astype(np.int64), wall, int(outward.bytes.sum()))


def _share(rank: RankAccount) -> float:
    """Share of the accounted steps that is idle for saves or only copies for them."""
    budget = rank.main.budget
    if not budget.total_ns:
        return 0.0
    copies = find_copies(rank)
    own = exposed_ns(rank, copies.of(copies.in_checkpoint))
    return (budget.kept_ns("checkpoint") + own) / budget.total_ns


def _number(saves: _Saves) -> str:
    return "one save" if len(saves) == 1 else f"{len(saves)} saves"


def _usual_step_ms(rank: RankAccount, saves: _Saves) -> float:
    """Median step without a save, ms; 0 where every step has one."""
    steps = rank.main.steps
    plain = steps.keep.copy()
    plain[saves.step] = False
    return float(np.median((steps.end_ns - steps.start_ns)[plain])) / 1e6 if plain.any() else 0.0


def _evidence(
    run: RunView, rank: RankAccount, all_saves: list[_Saves], worst: int, share: float
) -> list[Evidence]:
    saves = all_saves[worst]
    n_steps = int(np.count_nonzero(rank.main.steps.keep))
    usual = _usual_step_ms(rank, saves)
    each = f"A save stops training for {milliseconds(saves.mean_ms)}"
    if usual:
        times = significant(saves.mean_ms / usual, 2)
        each += f", as long as {times} steps of {milliseconds(usual)}"
    device = "The device is" if run.has_device else "Training is"
    evidence = [
        Evidence(
            text=f"{device} idle {percent(share)} of the recorded time while a checkpoint is"
            f" written ({_number(saves)} in {counted(n_steps, 'step')}).",
            value=round(share, 4),
            unit="share of step",
            windows=run.longest_gaps(rank, "checkpoint"),
        ),
        Evidence(text=each + ".", value=round(saves.mean_ms, 3), unit="ms"),
    ]
    if saves.period is not None:
        plural = "step" if saves.period == 1 else f"{saves.period} steps"
        evidence.append(
            Evidence(
                text=f"Saves come every {plural}.", value=float(saves.period), unit="steps per save"
            )
        )
    elif usual:
        # x = save / (save + interval) solved for the interval.
        rare = saves.mean_ms * (1 / USUAL_LOSS - 1) / usual
        evidence.append(
            Evidence(
                text="One save was recorded, so how often they come is not known: saving takes 1 %"
                f" of the time when there are {rare:,.0f} steps between two of them.",
                value=round(rare),
                unit="steps per save",
            )
        )
    if saves.bytes:
        per_save = saves.bytes / len(saves)
        evidence.append(
            Evidence(
                text=f"{in_bytes(per_save)} are copied to the host in a save; from start to end"
                f" it writes {in_bytes(per_save / (saves.mean_ms / 1e3))}/s.",
                value=per_save,
                unit="bytes per save",
            )
        )
    if len(run.ranks) > 1:
        evidence.append(_who(run, all_saves))
    return evidence


def _who(run: RunView, saves: list[_Saves]) -> Evidence:
    writers = [r.rank for r, each in zip(run.ranks, saves, strict=True) if len(each)]
    if len(writers) == len(run.ranks):
        text = f"All {len(writers)} recorded ranks write."
    else:
        named = ", ".join(str(rank) for rank in writers)
        text = (
            f"Of {len(run.ranks)} recorded ranks {len(writers)}"
            f" {agrees(len(writers), 'writes', 'write')} ({named});"
            f" {agrees(len(run.ranks) - len(writers), 'the other one waits', 'the others wait')}."
        )
    return Evidence(text=text, value=float(len(writers)), unit="ranks")


def _fixes(run: RunView, saves: list[_Saves], mine: _Saves) -> list[Fix]:
    fixes = [_in_background(run)]
    step_ms = run.step_ms()
    if mine.period is not None:
        fixes.append(
            Fix(
                title="Save less often",
                detail=f"A checkpoint every {mine.period} step{'s' if mine.period > 1 else ''} of"
                f" {milliseconds(step_ms)} guards {milliseconds(mine.period * step_ms)} of"
                " work. Ten times as rarely costs a tenth.",
                code=f"if step % {10 * mine.period} == 0:\n    save(…)",
                cost="more work to repeat after a failure",
            )
        )
    writers = sum(1 for each in saves if len(each))
    if run.facts.ddp and not run.facts.fsdp and writers > 1:
        fixes.append(
            Fix(
                title="Let rank 0 alone write",
                detail="Under DistributedDataParallel all ranks hold the same model and optimizer;"
                f" {writers} of them write it.",
                code="if torch.distributed.get_rank() == 0:\n    torch.save(…)",
                cost="none",
            )
        )
    if run.facts.fsdp:
        fixes.append(
            Fix(
                title="Write shards, every rank its own",
                detail="torch.distributed.checkpoint writes from all ranks at once and gathers"
                " nothing.",
                code="import torch.distributed.checkpoint as dcp\n"
                "from torch.distributed.checkpoint.state_dict import get_state_dict\n"
                "weights, moments = get_state_dict(model, optimizer)   # this rank's shards\n"
                'dcp.async_save({"model": weights, "optimizer": moments}, checkpoint_id=path)\n'
                + CPU_BACKEND,
                cost="a checkpoint of many files; loading goes through dcp.load",
            )
        )
    fixes.append(
        Fix(
            title="Write to a fast local disk",
            detail="A local NVMe disk takes some GB/s, a network file system often a tenth. Copy"
            " from there to where the checkpoint has to stay while training goes on.",
            cost="local disk space; a copy in the background",
        )
    )
    return fixes


def _in_background(run: RunView) -> Fix:
    if run.has_device:
        return Fix(
            title="Copy to the host, then write on a thread of its own",
            detail="Only the copy has to happen between two steps; serializing and writing can"
            " go on beside training.",
            code="state = {k: v.detach().to('cpu', copy=True)\n"
            "         for k, v in model.state_dict().items()}\n"
            "writer.submit(torch.save, state, path)  # concurrent.futures.ThreadPoolExecutor(1)"
            + (
                "\n# or torch.distributed.checkpoint.async_save(state_dict, checkpoint_id=path)\n"
                + CPU_BACKEND
                if run.facts.ddp or run.facts.fsdp
                else ""
            ),
            cost="host memory for one copy of the state; wait for the last save before the next",
        )
    return Fix(
        title="Copy the state, then write on a thread of its own",
        detail="Only the copy has to happen between two steps; waiting for the disk can go on"
        " beside training.",
        code="state = copy.deepcopy(model.state_dict())\n"
        "writer.submit(torch.save, state, path)  # concurrent.futures.ThreadPoolExecutor(1)",
        cost="memory for one copy of the state; wait for the last save before the next",
    )


def _where(rank: RankAccount) -> tuple[Place, ...]:
    if not records_lines(rank.trace):
        return ()
    spans = _spans(rank)
    lanes = np.full(len(spans), rank.host.main_lane, np.int64)
    for lane, own in rank.host.spans["checkpoint"].items():
        lanes[is_in(spans.start, own.start)] = lane
    total = float(max(rank.main.budget.total_ns, 1))
    weight = spans.lengths.astype(np.float64)
    return lines_within(rank.trace, rank.host, lanes, spans.start, spans.end, weight, total)


CAUSE = Cause(
    id=ID,
    title="Checkpoints",
    judge=judge,
    docs=__doc__ or "",
    removes=("checkpoint",),
    recurs=lambda run: True,  # nobody saves by accident; the evidence says how often it comes
)
