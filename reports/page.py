"""What the static page says: a Diagnosis turned into the template's few variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuprof.diagnosis import Diagnosis, Finding, Window, to_json
from gpuprof.reports import budget, charts, gains, lanes, overview, story, template_code, text
from gpuprof.reports.curves import GpuCurves
from gpuprof.reports.words import Catalog
from gpuprof.trace import Trace

if TYPE_CHECKING:
    from markupsafe import Markup

STRIP_BINS = 400
"""Columns of the static busy strip: one for two or three pixels, about 2 kB a stream."""

STRIP_LANES = 8
"""Streams in the static strip, over all ranks at least one each."""

STRIP_TRACES = 16
"""Ranks in the static strip: the interactive timeline has them all."""

BUTTONS = 3
""""Show in timeline" buttons behind one sentence of evidence."""

MAX_HEADLINE = 240
"""Characters of the headline: it is also the title of the tab."""

MOST_UNFOLDED = 12
"""Ranks and files that stand open: the late ranks come first, the others fold away."""

FEW_CURVES = 2
"""GPUs whose curves stand open: the others of a job mostly look the same."""

MAX_ITEMS = 50
"""Warnings and left-out steps that are listed one by one."""

LEGEND = tuple(name for name in lanes.CLASSES if not name.startswith("idle"))
IDLE_LEGEND = tuple(name for name in lanes.CLASSES if name.startswith("idle"))


def size_estimate(
    diagnosis: Diagnosis, traces: Sequence[Trace], gpus: Sequence[GpuCurves] = ()
) -> int:
    """About the bytes of the static page, on the large side: for the timeline's budget."""
    strips = sum(
        min(STRIP_LANES, len({lane.stream for lane in trace.lanes if lane.is_stream})) or 1
        for trace in traces[:STRIP_TRACES]
    )
    ranks = sum(3_000 + 170 * min(len(rank.step_ms), charts.MAX_BARS) for rank in diagnosis.ranks)
    curves = 4_500 * sum(len(gpu.curves) for gpu in gpus[: overview.MAX_DRAWN])
    curves += 6_000 * min(len(gpus), overview.MAX_DRAWN)
    return 30_000 + 2 * len(to_json(diagnosis)) + strips * 6_000 + ranks + curves


def _excess(count: int, words: Catalog) -> list[str]:
    return [words.say("data.more", count=text.count(count))] if count > 0 else []


def _finding(
    finding: Finding,
    number: int,
    diagnosis: Diagnosis,
    window_index: dict[int, int],
    words: Catalog,
) -> dict[str, Any]:
    from markupsafe import Markup

    gain = finding.gain
    evidence = []
    for item in finding.evidence:
        known = [window_index[id(w)] for w in item.windows if id(w) in window_index][:BUTTONS]
        labels = (
            [words.say("finding.show")]
            if len(known) == 1
            else [words.say("finding.show.many", index=i + 1) for i in range(len(known))]
        )
        buttons = [
            {"index": index, "label": label} for index, label in zip(known, labels, strict=True)
        ]
        evidence.append(
            {
                "text": item.text,
                "source": item.source and words.name("origin", item.source),
                "windows": buttons,
            }
        )
    many_ranks = diagnosis.run.world_size > 1
    result: dict[str, Any] = {
        "data": finding,
        "evidence": evidence,
        "confidence": story.confidence(finding.confidence, words),
        "ranks": story.ranks(finding.ranks, words) if many_ranks else "",
        "share": words.say("finding.share", share=text.percent(finding.share))
        if gain is None and finding.share > 0
        else "",
        "late": story.late(finding.late_ranks, words),
        "gain_main": "",
        "gain_note": "",
        "gain_text": gains.of_cause(finding, diagnosis, words),
        "gain_range": "",
        "gain_bar": None,
    }
    if gain is not None:
        if gains.saved_ms(gain, diagnosis) is not None:
            share = text.percent(gain.reduction)
            result["gain_note"] = words.say(gains.whole(diagnosis, "key.of_step"), share=share)
        result["gain_main"] = gains.at_most(gains.saved(gain, diagnosis), gain, words)
        ends = text.percent(gain.low), text.percent(gain.high)
        if ends[0] != ends[1]:
            result["gain_range"] = words.say("finding.gain.interval", low=ends[0], high=ends[1])
        result["gain_bar"] = Markup(charts.gain_bar(gain.reduction, gain.low, gain.high))
    return result


def _ranks(diagnosis: Diagnosis, words: Catalog) -> tuple[list[dict[str, Any]], float]:
    from markupsafe import Markup

    top = max((max(rank.step_ms, default=0.0) for rank in diagnosis.ranks), default=0.0)
    many_devices = len({(rank.rank, rank.device_index) for rank in diagnosis.ranks}) > len(
        {rank.rank for rank in diagnosis.ranks}
    )
    one_kind = len({rank.device for rank in diagnosis.ranks}) == 1  # then the page's top names it
    ranks = list(diagnosis.ranks)
    if len(ranks) > MOST_UNFOLDED:
        ranks.sort(key=lambda rank: not rank.late)
    result = []
    for rank in ranks:
        rows = budget.rows(rank.budget, None)
        ordered = sorted(rank.step_ms)
        median = ordered[len(ordered) // 2] if ordered else None
        name = words.say("rank.name", rank=rank.rank)
        numbers = []
        if median is not None:
            numbers.append((words.say("rank.median"), text.milliseconds(median)))
        numbers.append((words.say("rank.busy"), text.percent(rank.busy_frac)))
        if rank.wait_frac is not None:
            numbers.append((words.say("rank.wait"), text.percent(rank.wait_frac)))
        lengths = words.several(text.milliseconds(value) for value in rank.step_ms[:20])
        label = words.labelled(words.clauses((name, words.say("rank.steps"))), lengths)
        device = "" if one_kind else rank.device
        if many_devices and rank.device_index >= 0:
            device = f"{device} ({rank.device_index})".strip()
        result.append(
            {
                "title": name,
                "late": rank.late,
                "device": device,
                "strip": Markup(charts.step_strip(rank.step_ms, top, label)),
                "bar": Markup(charts.stacked_bar(rows, words, height=8)),
                "numbers": numbers,
            }
        )
    return result, top


def _strips(traces: Sequence[Trace], words: Catalog) -> tuple[list[dict[str, Any]], int]:
    from markupsafe import Markup

    shown = [trace for trace in traces if len(trace)][:STRIP_TRACES]
    each = max(1, STRIP_LANES // max(len(shown), 1))
    figures = []
    left_out = 0
    for trace in shown:
        found, more = lanes.busy_bins(trace, STRIP_BINS, each, words)
        left_out += more
        if not found:
            continue
        span = (int(trace.end_ns.max()) - int(trace.start_ns[0])) / 1e6
        title = words.say("timeline.static", span=text.milliseconds(span))
        if len(shown) > 1 and trace.meta.rank is not None:
            title = words.say("timeline.static.rank", rank=trace.meta.rank) + f" · {title}"
        figures.append(
            {
                "title": title,
                "lanes": [
                    {"label": label, "svg": Markup(charts.busy_strip(shares, label))}
                    for label, shares in found
                ],
            }
        )
    return figures, left_out


def render(
    diagnosis: Diagnosis,
    traces: Sequence[Trace],
    words: Catalog,
    *,
    template: str,
    css: str,
    policy: str,
    windows: Sequence[tuple[int, Window]],
    has_timeline: bool,
    thinned: bool,
    notes: Sequence[str],
    gpus: Sequence[GpuCurves] = (),
) -> str:
    """The page up to its data blocks.

    Args:
        template: source of the Jinja2 template.
        css, policy: the style sheet and the Content-Security-Policy that allows it.
        windows: those that the timeline knows, in its order.
        has_timeline: whether data blocks follow.
        thinned: whether the timeline leaves events out (then its notes stand beside it too).
        gpus: what was sampled over the run.
    """
    from jinja2 import Environment, StrictUndefined, Template
    from markupsafe import Markup, escape

    def plain(value: Any) -> Any:
        """What every expression of the template passes through before it is escaped."""
        return (
            text.glue(text.clean(value))
            if isinstance(value, str) and not hasattr(value, "__html__")
            else value
        )

    def code(value: str) -> Markup:
        return escape(text.clean_block(value))

    def typed(value: str) -> Markup:
        """A sentence whose parts between backticks are what a reader types."""
        return Markup("").join(
            Markup("<code>{}</code>").format(piece) if is_code else plain(piece)
            for piece, is_code in text.typed(value)
        )

    def verbatim(value: str) -> Markup:
        """Paths, names and hashes: copied by readers, so no space is touched."""
        return escape(text.clean(value))

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=plain, trim_blocks=True
    )
    step = diagnosis.run.steps.length_ms
    known = budget.has_account(diagnosis)
    rows = budget.rows(diagnosis.budget, step) if known else []
    digits = 2 if step is not None and step < 10 else 1
    environment.filters.update(
        ms=text.milliseconds,
        pct=text.percent,
        count=text.count,
        bytes=text.size,
        kernel=text.short_kernel_name,
        code=code,
        verbatim=verbatim,
        sentence=text.sentence,
        typed=typed,
        waterfall=lambda row: Markup(charts.waterfall_bar(row)),
        share_bar=lambda share: Markup(charts.share_bar(share)),
        row_ms=lambda row: f"{text.number(row.ms, digits)}{text.NBSP}ms",
        row_share=lambda row: f"{text.number(100 * row.share, 1)}{text.NBSP}%",
    )
    window_index = {id(window): index for index, (_, window) in enumerate(windows)}
    ranks, top = _ranks(diagnosis, words) if len(diagnosis.ranks) > 1 else ([], 0.0)
    late = [rank.rank for rank in diagnosis.ranks if rank.late]
    strips, strips_left_out = _strips(traces, words)
    warnings = list(diagnosis.warnings[:MAX_ITEMS])
    warnings += _excess(len(diagnosis.warnings) - MAX_ITEMS, words)
    reductions = sorted(diagnosis.bound.reductions.items(), key=lambda item: -item[1])
    code_of_page = template_code.compiled(environment, template)
    page = Template.from_code(environment, code_of_page, environment.make_globals(None))
    return page.render(
        d=diagnosis,
        language=words.language,
        say=words.say,
        name=words.name,
        labelled=words.labelled,
        aside=words.aside,
        clauses=words.clauses,
        whole=lambda key: gains.whole(diagnosis, key),
        nothing_found=story.nothing_found(diagnosis, words),
        css=Markup(css),
        policy=policy,
        headline=text.clean(diagnosis.headline, MAX_HEADLINE).rstrip(".。")
        or words.say("untitled"),
        facts=story.run_facts(diagnosis, words),
        cost=story.cost(diagnosis, words),
        together=gains.of_all(diagnosis, words),
        keys=story.key_figures(diagnosis, words),
        changes=gains.changes(diagnosis, words),
        warnings_line=story.warnings_line(diagnosis, words),
        known=known,
        stands=story.stands(diagnosis),
        ordered=story.ordered(diagnosis),
        not_judged=story.not_judged(diagnosis, words),
        budget=rows,
        stacked=Markup(charts.stacked_bar(rows, words)),
        step_ms=step,
        step_total=f"{text.number(step, digits)}{text.NBSP}ms" if step is not None else "",
        share_total=f"100.0{text.NBSP}%",
        reductions=[item for item in reductions if item[1] >= 0.0005],
        findings=[
            _finding(finding, number, diagnosis, window_index, words)
            for number, finding in enumerate(diagnosis.findings, 1)
        ],
        ranks=ranks,
        most=MOST_UNFOLDED,
        ranks_line=words.say(
            "rank.some_late" if len(late) == 1 else "rank.some_late.many",
            ranks=text.rank_list(late),
        )
        if late
        else words.say("rank.none_late"),
        rank_scale=words.say("rank.note", top=text.milliseconds(top)) if top else "",
        curves=overview.section(diagnosis, traces, gpus, words),
        few_curves=FEW_CURVES,
        has_timeline=has_timeline,
        legend=LEGEND,
        idle_legend=IDLE_LEGEND if has_timeline else (),
        strips=strips,
        strips_left_out=words.say("timeline.more_lanes", count=text.count(strips_left_out))
        if strips_left_out
        else "",
        timeline_short=list(notes[1:] if has_timeline else notes)
        if thinned or (notes and not has_timeline)
        else [],
        timeline_notes=list(notes),
        kernels_have_limit=any(
            row.limit or row.achieved_frac is not None for row in diagnosis.kernels
        ),
        warnings=warnings,
        replay=story.replay(diagnosis, words),
        excluded=diagnosis.run.steps.excluded[:MAX_ITEMS],
        files=diagnosis.files,
    )
