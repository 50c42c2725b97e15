"""The catalogue of wording: every sentence that a report says on its own, by key.

A second language is a second table with the same keys. What the diagnosis says itself (headlines,
claims, fixes) comes from the analyzers and is not translated here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuprof.errors import GpuprofError

ENGLISH: Mapping[str, str] = {
    # buckets of the step budget: name, and what the time is
    "bucket.compute": "Compute",
    "bucket.communication": "Exposed communication",
    "bucket.copy": "Exposed copies",
    "bucket.input": "Waiting for input",
    "bucket.sync": "Waiting after a sync",
    "bucket.checkpoint": "Checkpointing",
    "bucket.host": "Waiting for host code",
    "bucket.communication_host": "Host-side collective",
    "bucket.allocator": "Allocator",
    "bucket.launch": "Launch latency",
    "bucket.unknown": "Idle, not explained",
    "about.compute": "at least one compute kernel runs",
    "about.communication": "a collective runs and no compute kernel does",
    "about.copy": "a copy or memset runs and no kernel does",
    "about.input": "idle: the DataLoader has not delivered the batch",
    "about.sync": "idle: the queue ran dry behind a blocking call",
    "about.checkpoint": "idle: the state is being saved",
    "about.host": "idle: Python, the dispatcher or the launch API is behind",
    "about.communication_host": "idle: a collective runs on the CPU",
    "about.allocator": "idle: device memory is being allocated or freed",
    "about.launch": "idle: the device waits for itself",
    "about.unknown": "idle: nothing recorded explains it",
    # causes
    "cause.dataloader": "Data loading",
    "cause.small-batch": "Small batch",
    "cause.sync-points": "Synchronization points",
    "cause.nccl-wait": "Communication wait",
    "cause.host-overhead": "Host overhead",
    "cause.memcpy": "Memory copies",
    "cause.imbalance": "Imbalance between devices",
    "cause.checkpoint": "Checkpointing",
    "cause.throttling": "Throttling",
    "cause.hardware-fault": "Hardware fault",
    "cause.memory-pressure": "Memory pressure",
    "cause.low-precision": "Tensor cores not in use",
    "cause.hang": "Hang",
    "cause.nccl-config": "NCCL configuration",
    # bound classes
    "bound.compute": "Compute",
    "bound.bandwidth": "Memory bandwidth",
    "bound.input": "Input",
    "bound.communication": "Communication",
    "bound.host": "Host",
    "bound.mixed": "Mixed",
    "bound.unknown": "Unknown",
    "limit.compute": "Compute",
    "limit.bandwidth": "Memory bandwidth",
    "limit.copy": "Copy",
    "limit.latency": "Latency",
    "limit.communication": "Communication",
    "severity.critical": "critical",
    "severity.warning": "warning",
    "severity.info": "note",
    "confidence.high": "high",
    "confidence.medium": "medium",
    "confidence.low": "low",
    # headline
    "untitled": "GPU profile",
    "facts.run": "{ranks} on {devices}",
    "facts.ranks.one": "1 rank",
    "facts.ranks.many": "{count} of {world} ranks",
    "facts.steps": "{count} steps, {source}",
    "facts.steps.one": "1 step, {source}",
    "facts.steps.none": "no steps found",
    "source.ProfilerStep": "marked by the profiler",
    "source.session": "marked by the session",
    "source.inferred": "inferred from repetition",
    "source.none": "not marked",
    "cost.whole": "The device does nothing for {idle} of the {step} that were recorded ({share}).",
    "cost": "The device does nothing for {idle} of each {step} step ({share}).",
    "cost.share": "The device does nothing for {share} of each step.",
    "together": "All changes together could bring a step from {step} to {after}, {share} less. "
    "That is one replay with every cause removed at once, not a sum of the single gains.",
    "together.whole": "All changes together could bring the recorded {step} to {after}, {share} "
    "less. That is one replay with every cause removed at once, not a sum of the single gains.",
    "together.share": "All changes together could shorten a step by {share}: one replay with every "
    "cause removed at once, not a sum of the single gains.",
    "together.none": "No change with a priced gain was found.",
    "together.untrusted": "No gain is quoted: the replay misses the measured step by {error}, "
    "more than the 3 % at which its predictions are trusted.",
    "key.step": "Step",
    "key.step.whole": "Recording",
    "key.busy": "Device busy",
    "key.save": "Together saves up to",
    "key.bound": "Bound by",
    "key.median": "median of {count} steps",
    "key.median.one": "one step",
    "key.confidence": "{percent} confidence",
    "key.also": "near tie with {also}",
    "key.of_step": "{share} of the step",
    "key.of_step.whole": "{share} of the recording",
    "warnings.top.one": "1 warning about the data",
    "warnings.top.many": "{count} warnings about the data",
    # sections
    "skip": "Skip to the findings",
    "section.budget": "Where one step goes",
    "section.budget.whole": "Where the time goes",
    "section.findings": "What to change",
    "section.findings.order": "Most gain first.",
    "section.ranks": "Ranks",
    "section.timeline": "Timeline",
    "section.kernels": "Heaviest device work",
    "section.ruled_out": "Ruled out",
    "section.not_judged": "Could not be judged",
    "section.data": "About the data",
    # budget
    "budget.part": "Part of the step",
    "budget.ms": "Time",
    "budget.share": "Share",
    "budget.total": "Step",
    "budget.part.whole": "Part of the recording",
    "budget.total.whole": "Recording",
    "budget.busy": "device busy",
    "budget.idle": "device idle",
    "budget.none": "The recording does not allow an account of the step.",
    "budget.resources": "With one resource infinitely fast, the replayed step would shrink by:",
    # findings
    "findings.unknown": "This recording does not show what to change.",
    "findings.none": "Nothing that is worth changing was found in this recording.",
    "finding.gain.up_to": "up to",
    "finding.gain.none": "no gain quoted",
    "finding.confidence": "{word} confidence ({percent})",
    "finding.share": "takes {share} of the step",
    "finding.ranks": "rank {ranks}",
    "finding.ranks.many": "ranks {ranks}",
    "finding.late": "late: rank {ranks}",
    "finding.evidence": "Evidence",
    "finding.where": "Where",
    "finding.fixes": "What to change",
    "finding.gain": "How it was priced",
    "finding.gain.text": "Replaying the steps with this cause removed takes {after} a step "
    "instead of {step}: {share} less.",
    "finding.gain.text.whole": "Replaying the recording with this cause removed takes {after} "
    "instead of {step}: {share} less.",
    "finding.gain.text.share": "Replaying the steps with this cause removed shortens the step "
    "by {share}.",
    "finding.gain.interval": "Over the steps of the window: {low} to {high}.",
    "finding.gain.untrusted": "No gain is quoted: the replay misses the measured step by {error}; "
    "it is trusted below 3 %.",
    "finding.gain.unpriced": "No gain is quoted: this cause could not be replayed from the "
    "recording.",
    "finding.cost": "Cost",
    "finding.show": "Show in timeline",
    "finding.show.many": "Show {index} in timeline",
    "finding.no_place": "No stacks were recorded, so the line in your code is not known.",
    "evidence.source": "from {source}",
    # ranks
    "rank.name": "Rank {rank}",
    "rank.column": "Rank",
    "rank.device": "Device",
    "rank.steps": "Step times",
    "rank.budget": "Step budget",
    "rank.median": "Median",
    "rank.busy": "Busy",
    "rank.wait": "Waits for others",
    "rank.late": "late",
    "rank.note": "All strips share one scale, from 0 to {top}.",
    "rank.none_late": "No rank is late by more than chance.",
    "rank.some_late": "Late: rank {ranks}. The others wait for it.",
    "rank.more": "{count} more ranks",
    "data.more_files": "{count} more files",
    "rank.legend": "Bars show one step each; the stacked bar is the rank's own budget.",
    # curves over the run
    "section.curves": "Over the run",
    "curve.gpu": "GPU {index}",
    "curve.util": "Utilization",
    "curve.power": "Power",
    "curve.clock": "SM clock",
    "curve.memory": "Memory in use",
    "curve.numbers": "mean {mean}, at most {peak}",
    "curve.top": "scale to {top}",
    "curve.span": "{span} of samples",
    "curve.untimed": "the samples' times were not recorded",
    "curve.marks": "marked: findings {numbers}",
    "curve.traced": "dark line: the steps that were traced",
    "curve.note": "What the driver told about each GPU while the run went on. Utilization says "
    "that some kernel ran, not how much of the GPU it used. Holes are reads that failed.",
    "curve.more": "More GPUs: {count}",
    # charts
    "chart.step_share": "share of the step, %",
    "chart.gains": "What each change saves",
    "chart.peak": "How near the heaviest work comes to the device's peak",
    "chart.none": "There is nothing to draw in this diagnosis.",
    # timeline
    "timeline.intro": "Opens on the decisive steps; what the findings point at is shaded. Where "
    "events are too short to draw, the strength of a column is its exact busy share.",
    "timeline.unsupported": "This browser cannot unpack the timeline; the strip shows the busy "
    "share of each stream.",
    "timeline.static": "Busy share of each device stream over the recording, {span} in all.",
    "timeline.static.rank": "Rank {rank}",
    "timeline.noscript": "The interactive timeline needs JavaScript. Nothing else on this page "
    "does.",
    "timeline.empty": "There are no events to draw.",
    "timeline.more_lanes": "{count} more streams are not in this strip.",
    "timeline.aria": "Trace timeline. Arrow keys walk the events, W and S zoom, A and D pan, "
    "0 shows everything, F frames the selected event.",
    "timeline.minimap.aria": "Overview of the whole recording; drag to move the view",
    "timeline.search": "Search events",
    "timeline.previous": "Previous",
    "timeline.next": "Next",
    "timeline.all": "Whole recording",
    "timeline.decisive": "Decisive steps",
    "timeline.zoom_in": "Zoom in",
    "timeline.zoom_out": "Zoom out",
    "timeline.keys": "Keyboard and mouse",
    "timeline.counted": "{value} from {start} on",
    "timeline.same": "the same collective on {count} ranks; {late} came last, {after} after the "
    "first",
    "timeline.sum": "From {start}, {length}:",
    "timeline.sum.lanes": "Busy time of each lane",
    "timeline.sum.names": "What took most of it",
    "timeline.sum.events": "{count} events",
    "timeline.sum_view": "Sum up this view",
    "timeline.help.same": "the same collective on the next rank",
    "timeline.help.sum": "sum up what is in view",
    "timeline.help.ends": "sum up from, or to, the selected event",
    "perfetto.open": "Open in Perfetto",
    "perfetto.save": "Save as a trace file",
    "perfetto.note": "Perfetto opens at ui.perfetto.dev and gets the trace in your browser; it is "
    "not uploaded. Nothing is asked of the network before you click.",
    "perfetto.packing": "Packing the trace …",
    "perfetto.sent": "Handed over.",
    "perfetto.saved": "Saved.",
    "perfetto.failed": "That did not work.",
    "perfetto.blocked": "the browser blocked the new window",
    "perfetto.findings": "Findings",
    "timeline.help": "Drag to pan, with Shift to sum up a stretch. Click the canvas, then turn "
    "the wheel to zoom; Ctrl and wheel zooms at once; Shift and wheel scrolls the lanes. Click a "
    "lane's name to fold it.",
    "timeline.help.walk": "select the next event, or the lane above or below",
    "timeline.help.zoom": "zoom in, zoom out",
    "timeline.help.pan": "move left, move right",
    "timeline.help.frame": "frame the selected event",
    "timeline.help.all": "show the whole recording",
    "timeline.help.search": "search",
    "timeline.help.clear": "clear the search and the selection",
    "timeline.help.pages": "scroll the lanes",
    "timeline.ready": "{events} events in {lanes} lanes. Click one, or walk them with the arrow "
    "keys.",
    "timeline.selected": "starts {start}, lasts {duration}",
    "timeline.found": "{count} events, {total} in all",
    "timeline.found.none": "no event has this in its name",
    "timeline.idle": "idle",
    "timeline.window": "finding {number}",
    "timeline.deep": "{count} events nested deeper than {limit} levels are not drawn",
    "timeline.rank": "Rank {rank}",
    "lane.stream": "Stream {stream}",
    "lane.marks": "Stream {stream} · marks",
    "lane.gaps": "Idle gaps",
    "lane.of_device": "GPU {device} · {lane}",
    "lane.thread": "Thread {name}",
    "class.compute": "compute kernel",
    "class.comm": "communication kernel",
    "class.copy": "copy or memset",
    "class.runtime": "runtime call",
    "class.annotation": "annotation",
    "class.cpu": "CPU operator",
    "class.python": "Python and other",
    "class.idle": "idle, not explained",
    "class.idle-input": "idle, waiting for input",
    "class.idle-sync": "idle after a sync",
    "class.idle-checkpoint": "idle in a checkpoint",
    "class.idle-host": "idle, waiting for host code",
    "class.idle-comm": "idle in a collective of the host",
    "merged.name": "short events, merged",
    "other.name": "(name left out)",
    "note.resolution": "Timeline times are cut to {tick}.",
    "note.merged": "To keep the file under {limit}, the timeline draws {kept} marks for {total} "
    "events: every event of the decisive windows, and elsewhere those of at least {shortest}. "
    "Shorter ones are merged into blocks that keep their summed time; nested ones are left out.",
    "note.windows_cut": "The decisive windows alone are over {limit}: {cut} of {all} windows are "
    "reduced as well.",
    "note.no_timeline": "The timeline was left out: it does not fit into {limit}.",
    "note.lanes": "{count} lanes with the fewest events are not in the timeline.",
    "note.names": "{count} rare event names were left out of the timeline.",
    "note.clock": "The ranks' clocks have no common zero: each rank's timeline starts at its own.",
    # kernels
    "kernel.name": "Name",
    "kernel.kind": "Kind",
    "kernel.count": "Calls",
    "kernel.total": "Total",
    "kernel.mean": "Mean",
    "kernel.share": "Of the step",
    "kernel.limit": "Limit",
    "kernel.achieved": "of peak",
    "kernel.note": "Times are over the accounted steps.",
    # judgement
    "not_judged.record": "Record what is missing:",
    # data
    "data.file": "File",
    "data.kind": "Kind",
    "data.size": "Size",
    "data.events": "Events",
    "data.sha256": "SHA-256",
    "data.warnings": "Warnings",
    "data.more": "and {count} more",
    "data.replay": "Replay",
    "data.replay.text": "Replaying the recorded steps unchanged takes {replayed} against "
    "{measured} measured: an error of {error}.",
    "data.replay.trusted": "Below 3 %, so gains are quoted.",
    "data.replay.untrusted": "Not below 3 %, so no gains are quoted.",
    "data.replay.none": "The steps could not be replayed, so no gains are quoted.",
    "data.excluded": "Steps left out",
    "data.excluded.rank": "rank {rank}",
    "data.facts": "Read from the recording",
    "data.timeline": "Timeline",
    "data.made_by": "Made by gpuprof {version}. This page makes no network request.",
    "theme": "Switch theme",
    # terminal
    "terminal.together": "All changes together: up to {saved} of {step} a step ({share}); one "
    "replay, not a sum.",
    "terminal.together.whole": "All changes together: up to {saved} of the recorded {step} "
    "({share}); one replay, not a sum.",
    "terminal.unbound": "What bounds the run is not known",
    "terminal.bound": "Bound by",
    "terminal.more": "{count} more: {names}",
    "terminal.at": "at",
}

LANGUAGES: Mapping[str, Mapping[str, str]] = {"en": ENGLISH}


@dataclass(frozen=True, slots=True)
class Catalog:
    """The wording of one language."""

    language: str
    texts: Mapping[str, str]

    def say(self, key: str, **values: object) -> str:
        """The text of `key` with its fields filled in.

        Raises:
            KeyError: there is no such text: a fault of gpuprof, never of the input.
        """
        return self.texts[key].format(**values) if values else self.texts[key]

    def name(self, group: str, key: str) -> str:
        """The wording of a value that the diagnosis may hold, or the value itself when unknown."""
        return self.texts.get(f"{group}.{key}", key)


def catalog(language: str = "en") -> Catalog:
    """The wording of a language.

    Raises:
        GpuprofError: the language is not one of `LANGUAGES`.
    """
    texts = LANGUAGES.get(language)
    if texts is None:
        raise GpuprofError(
            f"no wording for the language {language!r}", hint=f"choose one of {sorted(LANGUAGES)}"
        )
    return Catalog(language, texts)
