"""The diagnosis as Markdown, for a pull request or an issue.

Text from the recording is escaped so that it stays text on any renderer: no markup, no raw HTML, no
link, no image, no mention. Code goes between fences longer than any run of backticks inside it.
"""

from __future__ import annotations

import re

from gpuprof.diagnosis import Diagnosis, Finding
from gpuprof.reports import budget, gains, story, text
from gpuprof.reports.words import Catalog, catalog, localized

TOP_KERNELS = 10
"""Rows of the kernel table: a pull request is read on a page, not in a spreadsheet."""

_ALWAYS = re.compile(r"([\\`*_\[\]<>|~$&])")
_AT_START = re.compile(r"^(\s*)([#+\-=>]|\d+[.)])")
_MENTION = re.compile(r"([@#])(?=\w)")


def escape(value: object) -> str:
    """Text that every Markdown renderer shows as it is, on one line."""
    line = _ALWAYS.sub(r"\\\1", text.clean(value))
    line = line.replace("://", r"\://").replace("www.", r"www\.")
    # A word joiner keeps `@name` and `#1` from notifying people and linking issues.
    line = _MENTION.sub("\\1\u2060", line)
    return _AT_START.sub(lambda found: f"{found[1]}{found[2][:-1]}\\{found[2][-1]}", line)


def inline_code(value: object) -> str:
    """A code span, also inside a table, with a fence that the content cannot close."""
    line = text.clean(value).replace("|", "\u2223")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    pad = " " if line.startswith("`") or line.endswith("`") or not line.strip() else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def _typed(line: str) -> str:
    """A sentence whose parts between backticks are code."""
    return "".join(
        inline_code(piece) if code else escape(piece) for piece, code in text.typed(line)
    )


def code_block(value: str, *, indent: str = "", language: str = "") -> list[str]:
    """A fenced block, each line indented so that it stays inside its list item."""
    block = text.clean_block(value)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", block)), default=0))
    lines = [f"{fence}{language}", *block.splitlines(), fence]
    return [indent + line for line in lines]


def _finding(number: int, finding: Finding, diagnosis: Diagnosis, words: Catalog) -> list[str]:
    gain = finding.gain
    saving = words.say("finding.gain.none")
    if gain is not None:
        saving = gains.saving(gain, diagnosis, words)
    facts = [words.name("severity", finding.severity), words.name("cause", finding.cause)]
    facts.append(story.confidence(finding.confidence, words))
    if diagnosis.run.world_size > 1 and finding.ranks:
        facts.append(story.ranks(finding.ranks, words))
    if finding.late_ranks:
        facts.append(story.late(finding.late_ranks, words))
    title = words.labelled(escape(finding.title), saving)
    lines = [f"### {number}. {title}", "", escape(" · ".join(facts)), ""]
    lines += [f"- {_typed(item.text)}" for item in finding.evidence]
    lines += [""]
    for place in finding.where:
        spot = text.clean(place.file) + (f":{place.line}" if place.line is not None else "")
        lines += [words.labelled(words.say("finding.where"), inline_code(spot)), ""]
        if place.code:
            lines += [*code_block(place.code, language="python"), ""]
    for fix in finding.fixes:
        lines += [f"**{escape(fix.title)}**", "", _typed(fix.detail), ""]
        if fix.code:
            lines += [*code_block(fix.code, language="python"), ""]
        if fix.cost:
            lines += [words.labelled(words.say("finding.cost"), escape(fix.cost)), ""]
    between = words.say("points.between")
    told = (gain.how, gain.limit) if gain is not None else ()
    how = "".join(between + escape(text.sentence(sentence)) for sentence in told if sentence)
    return [*lines, f"{escape(gains.of_cause(finding, diagnosis, words))}{how}", ""]


def _budget(diagnosis: Diagnosis, words: Catalog) -> list[str]:
    step = diagnosis.run.steps.length_ms
    rows = budget.rows(diagnosis.budget, step)
    lines = [f"## {words.say(gains.whole(diagnosis, 'section.budget'))}", ""]
    if not rows:
        return [*lines, words.say("budget.none"), ""]
    head = [
        words.say(gains.whole(diagnosis, "budget.part")),
        words.say("budget.ms"),
        words.say("budget.share"),
    ]
    lines += ["| " + " | ".join(head) + " |", "| :-- | --: | --: |"]
    digits = 2 if step is not None and step < 10 else 1
    for row in rows:
        length = f"{text.number(row.ms, digits)} ms" if row.ms is not None else ""
        name = words.name("bucket", row.bucket)
        lines.append(f"| {name} | {length} | {text.number(100 * row.share, 1)} % |")
    total = f"{text.number(step, digits)} ms" if step is not None else ""
    return [
        *lines,
        f"| **{words.say(gains.whole(diagnosis, 'budget.total'))}** | {total} | 100.0 % |",
        "",
    ]


def _ranks(diagnosis: Diagnosis, words: Catalog) -> list[str]:
    if len(diagnosis.ranks) < 2:
        return []
    head = ["rank.column", "rank.device", "rank.median", "rank.busy", "rank.wait"]
    lines = [f"## {words.say('section.ranks')}", ""]
    lines += ["| " + " | ".join(words.say(key) for key in head) + " | |"]
    lines += ["| --: | :-- | --: | --: | --: | :-- |"]
    for rank in diagnosis.ranks:
        ordered = sorted(rank.step_ms)
        median = text.milliseconds(ordered[len(ordered) // 2]) if ordered else ""
        wait = "" if rank.wait_frac is None else text.percent(rank.wait_frac)
        late = f"**{words.say('rank.late')}**" if rank.late else ""
        busy = text.percent(rank.busy_frac)
        lines.append(
            f"| {rank.rank} | {escape(rank.device)} | {median} | {busy} | {wait} | {late} |"
        )
    return [*lines, ""]


def to_markdown(diagnosis: Diagnosis, *, lang: str = "en") -> str:
    """The whole diagnosis as GitHub-flavoured Markdown, with a final newline.

    Raises:
        GpuprofError: the language is unknown.
    """
    words = catalog(lang)
    diagnosis = localized(diagnosis, lang)
    bound = diagnosis.bound
    lines = [f"# {escape(diagnosis.headline or words.say('untitled'))}", ""]
    lines += [escape(" · ".join(story.run_facts(diagnosis, words))), ""]
    lead = words.say("points.between").join(
        part for part in (story.cost(diagnosis, words), gains.of_all(diagnosis, words)) if part
    )
    lines += [escape(lead), ""]
    also = words.several(words.name("bound", item) for item in bound.also)
    sure = [words.say("key.confidence", percent=text.percent(bound.confidence))]
    sure += [words.say(story.near(bound.class_), also=also)] if also else []
    verdict = words.labelled(words.say("key.bound"), words.name("bound", bound.class_))
    verdict = words.aside(f"**{verdict}**", escape(words.clauses(sure)))
    stop = words.say("points.stop") + words.say("points.between")
    if not story.stands(diagnosis):
        lines += [f"{verdict}{stop}{escape(text.sentence(bound.why))}", ""]
    if budget.has_account(diagnosis):
        lines += _budget(diagnosis, words)
    lines += [f"## {words.say('section.findings')}", ""]
    if not diagnosis.findings:
        lines += [story.nothing_found(diagnosis, words), ""]
    for number, finding in enumerate(diagnosis.findings, 1):
        lines += _finding(number, finding, diagnosis, words)
    lines += _ranks(diagnosis, words)
    if diagnosis.kernels:
        head = ["kernel.name", "kernel.count", "kernel.total", "kernel.mean", "kernel.share"]
        lines += [f"## {words.say('section.kernels')}", ""]
        lines += ["| " + " | ".join(words.say(key) for key in head) + " |"]
        lines += ["| :-- | --: | --: | --: | --: |"]
        for row in diagnosis.kernels[:TOP_KERNELS]:
            name = inline_code(text.short_kernel_name(row.name))
            total, mean = text.milliseconds(row.total_ms), text.milliseconds(row.mean_us / 1e3)
            share = text.percent(row.share)
            lines.append(f"| {name} | {text.count(row.count)} | {total} | {mean} | {share} |")
        lines += [""]
    if diagnosis.ruled_out:
        lines += [f"## {words.say('section.ruled_out')}", ""]
        lines += [
            "- "
            + words.labelled(
                f"**{escape(words.name('cause', item.cause))}**", escape(text.sentence(item.why))
            )
            for item in diagnosis.ruled_out
        ]
        lines += [""]
    if diagnosis.not_judged:
        lines += [f"## {words.say('section.not_judged')}", ""]
        for causes, missing in story.not_judged(diagnosis, words):
            name = escape(causes)
            missed = escape(text.sentence(missing.missing))
            line = f"- {words.labelled(f'**{name}**', missed)}"
            if missing.command:
                line += words.say("points.between") + _typed(text.sentence(missing.command))
            lines += [line]
        lines += [""]
    lines += [f"## {words.say('section.data')}", ""]
    lines += [f"- {escape(text.sentence(warning))}" for warning in diagnosis.warnings]
    lines += [f"- {escape(story.replay(diagnosis, words))}"]
    for file in diagnosis.files:
        events = words.say("timeline.sum.events", count=text.count(file.events))
        facts = f"{text.size(file.size_bytes)}, {events}"
        lines += [f"- {inline_code(file.path)}: {facts}, SHA-256 {inline_code(file.sha256)}"]
    made_by = words.say("data.made_by", version=text.clean(diagnosis.gpuprof))
    lines += ["", escape(made_by)]
    tidy = re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
    return tidy.rstrip() + "\n"
