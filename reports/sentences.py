"""The analyzers' sentences in another language.

Analyzers write English, and that is what `diagnosis.json` holds. Here a sentence is recognized by
the template that it was made from and said again with the same values. A sentence that is in no
table stays English: a wrong translation would be a wrong verdict, a missing one is only English.

    ("Load with {n} worker processes", "用 {n} 个工作进程加载")

A value may be a phrase of its own ("the GPU", "rank 3 and rank 5"): it is looked up as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import msgspec

from gpuprof.diagnosis import Diagnosis

MAX_LENGTH = 1_000
"""Characters of a sentence that is looked up: no analyzer writes longer ones."""

MAX_DEPTH = 3
"""Phrases in phrases in phrases; deeper is no sentence of ours."""

_FIELD = re.compile(r"\{(\w+)\}")
_SPACE = "[ \u00a0]"
_OF_RANK = re.compile(r"([Rr]ank \d+): (?=\S)")
_NEXT_SENTENCE = re.compile(r"(?<=[.!?])[ \u00a0](?=[^\W\d_a-z]|\d|`)")

_NUMBERS = frozenset(
    {
        "share", "gain", "least", "busy", "idle", "lost", "spread", "fill", "units", "saved",
        "error", "wait", "rest", "beside", "ms", "us", "step", "max", "mean", "m", "own", "others",
        "alone", "p", "low", "high", "rate", "count", "all",
    }
)  # fmt: skip
"""Fields that are numbers, with a unit or without: nothing else fits there."""

_VALUE = r"(?:<[ \u00a0])?[-+−]?[\d.,\u202f]+(?:e[-+]?\d+)?(?:[ \u00a0]?(?:%|ns|µs|ms|s))?"

_OTHER_FIELDS = {
    "ranks": r"\d[\d, –]*(?: and \d+)?",  # numbers of ranks or devices, as they are listed
    "dims": r"\d+(?:x\d+)+",
    "pci": r"[\da-fA-F]{4,8}:[\da-fA-F]{2}:[\da-fA-F.]+",
}
"""Fields of which little else can be taken for them."""

_OF_LINE = re.compile(r"(.+) \(line (\d+)(?:, ([^()]*))?\)(\.?)")
"""Where in a log something stands, behind what is said of it."""

_NUMBER_LIST = re.compile(r"\d[\d, –]*(?: and \d+)?")

_WIDE = re.compile("[一-鿿]")
_LATIN = re.compile(r"[A-Za-z0-9%]")

_SINGULAR = re.compile(
    r"\b1 ((?:more |device |blocking |damaged |recorded |worker )?)"
    r"(event|line|step|call|process|worker|core|rank|sample|pair|channel|collective|launch)\b"
)
"""One of what is counted: Chinese counts one and many alike, so the sentence is looked up again as
that of many."""

_RECORDING = "the recording"
_IN_RECORDING = f" in {_RECORDING}"
_STEPS = ("the step", "a step", "each step", "the recorded steps")
"""How `gpuprof.analyzers.without_steps` changed a sentence: it is looked up as it was before."""

_STEPS_AS_RECORDING = re.compile("记录的?(?:各步|一步)|每?一步|每步")

_LISTS = (
    (re.compile(r", (?=[\d<])"), "，"),
    (re.compile(r", "), "、"),
    (re.compile(r" and "), "和"),
)
"""How values list things: shares of the step first, whose own words hold commas."""

Struct = TypeVar("Struct", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class _Rule:
    """A template, as a pattern, with what it becomes. literal: the longest stretch of its own,
    without spaces. letters: how many it has of its own."""

    pattern: re.Pattern[str]
    becomes: str
    literal: str
    letters: int


def _rule(english: str, other: str) -> _Rule:
    parts = _FIELD.split(english)
    pattern = ""
    seen = set()
    for index, part in enumerate(parts):
        if index % 2 == 0:
            pattern += re.escape(part).replace(r"\ ", _SPACE)
        elif part in seen:
            pattern += f"(?P={part})"
        else:
            seen.add(part)
            fits = _VALUE if part in _NUMBERS else _OTHER_FIELDS.get(part, ".+?")
            pattern += f"(?P<{part}>{fits})"
    own = [part.replace(" ", "") for part in parts[::2]]
    return _Rule(re.compile(pattern), other, max(own, key=len), sum(map(len, own)))


def _filled(becomes: str, values: Mapping[str, str]) -> str:
    """The template with its values. A space stands between a Chinese character and a word or number
    in Latin letters, also where the template can't know which of the two a value is."""
    line = ""
    for index, part in enumerate(_FIELD.split(becomes)):
        piece = part if index % 2 == 0 else values[part]
        before, after = line[-1:], piece[:1]
        meet = (_WIDE.match(before) and _LATIN.match(after)) or (
            _LATIN.match(before) and _WIDE.match(after)
        )
        line += f" {piece}" if meet else piece
    return line


def _joined(between: str, items: Sequence[str]) -> str:
    """A list, its items apart from Chinese letters as in `_filled`."""
    names = {f"k{number}": item for number, item in enumerate(items)}
    return _filled(between.join(f"{{{name}}}" for name in names), names)


def _as_many(found: re.Match[str]) -> str:
    ending = "es" if found[2].endswith(("s", "ch")) else "s"
    return f"1 {found[1]}{found[2]}{ending}"


class Translator:
    """Says sentences in another language.

    Args:
        sentences: English templates and the others', the more special ones first.
        join: what stands between two sentences, "" in Chinese.
    """

    def __init__(self, sentences: Sequence[tuple[str, str]], *, join: str = "") -> None:
        self.exact = {english: other for english, other in sentences if "{" not in english}
        rules = [_rule(english, other) for english, other in sentences if "{" in english]
        # A template with more letters of its own says more surely what a sentence is.
        self.rules = sorted(rules, key=lambda rule: -rule.letters)
        self.join = join
        self.say: Callable[[str], str] = lru_cache(maxsize=2_000)(self._say)

    def _say(self, text: str) -> str:
        """The text in the other language, or as it is; whole, else sentence by sentence."""
        if not text or len(text) > MAX_LENGTH:
            return text
        of_rank = _OF_RANK.match(text)
        if of_rank is not None:
            return f"{of_rank[1]}：{self._say(text[of_rank.end() :])}"
        of_line = _OF_LINE.fullmatch(text)
        whole = self._counted(of_line[1]) if of_line is not None else None
        if of_line is not None and whole is not None:
            where = f"，{of_line[3]}" if of_line[3] else ""
            return f"{whole}（第 {of_line[2]} 行{where}）" + ("。" if of_line[4] else "")
        whole = self._counted(text)
        if whole is not None:
            return whole
        pieces = _NEXT_SENTENCE.split(text)
        if len(pieces) < 2:
            return text
        said = [self._counted(piece) or piece for piece in pieces]
        line = said[0]
        for piece, before in zip(said[1:], said, strict=False):
            line += (self.join if before[-1:] in "。：；" else " ") + piece
        return line

    def _counted(self, text: str) -> str | None:
        """`_whole`, of one thing as of many, and of a recording as of its steps."""
        whole = None
        a_step = text.replace(_IN_RECORDING, " a step")
        if a_step != text:  # first, as short rules for phrases would take these whole
            whole = self._as_of_steps([a_step])
        whole = whole or self._whole(text, 0)
        if whole is None and _SINGULAR.search(text):
            whole = self._whole(_SINGULAR.sub(_as_many, text), 0)
        if whole is None and _RECORDING in text:
            bases = dict.fromkeys((a_step, text))
            whole = self._as_of_steps([b.replace(_RECORDING, s) for b in bases for s in _STEPS])
        return whole

    def _as_of_steps(self, ways: Sequence[str]) -> str | None:
        """A sentence about a recording without steps, said as one of these about steps would be."""
        for way in ways:
            whole = self._whole(way, 0)
            if whole is None and _SINGULAR.search(way):
                whole = self._whole(_SINGULAR.sub(_as_many, way), 0)
            if whole is not None:
                return _STEPS_AS_RECORDING.sub("整个记录", whole)
        return None

    def _whole(self, text: str, depth: int) -> str | None:
        plain = text.replace("\u00a0", " ")
        found = self.exact.get(plain)
        if found is not None:
            return found
        # A full stop belongs to the page, not to what is looked up.
        if plain.endswith(".") and plain[:-1] in self.exact:
            return self.exact[plain[:-1]] + "。"
        squeezed = plain.replace(" ", "")
        for rule in self.rules:
            if rule.literal not in squeezed:
                continue
            # First without its full stop, which the last value would take along.
            match, stop = None, ""
            if text.endswith("."):
                match, stop = rule.pattern.fullmatch(text[:-1]), "。"
            if match is None:
                match, stop = rule.pattern.fullmatch(text), ""
            if match is not None:
                values = {
                    name: self._value(value, depth) for name, value in match.groupdict().items()
                }
                return _filled(rule.becomes, values) + stop
        return None

    def _value(self, value: str, depth: int) -> str:
        if _NUMBER_LIST.fullmatch(value):
            return value.replace(", ", "、").replace(" and ", " 和 ")
        if depth >= MAX_DEPTH:
            return value
        for separator, between in _LISTS:
            items = separator.split(value)
            if separator is not _LISTS[0][0]:  # what begins with a number is a list for sure
                found = self._whole(value, depth + 1)
                if found is not None:
                    return found
            if len(items) > 1:
                found_items = [self._item(item, depth + 1) for item in items]
                if any(item is not None for item in found_items):
                    pairs = zip(items, found_items, strict=True)
                    return _joined(between, [item if new is None else new for item, new in pairs])
        return value

    def _item(self, item: str, depth: int) -> str | None:
        """One item of a list, which may end in "a and b"; None where it stays as it is."""
        found = self._whole(item, depth)
        if found is None and " and " in item:
            said = self._value(item, depth)
            found = said if said != item else None
        return found


def translate(diagnosis: Diagnosis, translator: Translator | None) -> Diagnosis:
    """The diagnosis with its sentences in another language; names, paths and code as they are."""
    if translator is None:
        return diagnosis
    say = translator.say

    def texts(value: Struct, *fields: str) -> Struct:
        return msgspec.structs.replace(
            value, **{name: say(getattr(value, name)) for name in fields}
        )

    findings = tuple(
        msgspec.structs.replace(
            finding,
            title=say(finding.title),
            evidence=tuple(texts(item, "text") for item in finding.evidence),
            fixes=tuple(texts(fix, "title", "detail", "cost") for fix in finding.fixes),
            gain=texts(finding.gain, "how", "limit") if finding.gain is not None else None,
        )
        for finding in diagnosis.findings
    )
    together = diagnosis.together
    steps = diagnosis.run.steps
    excluded = tuple(texts(step, "why") for step in steps.excluded)
    steps = msgspec.structs.replace(steps, excluded=excluded)
    facts: Mapping[str, str] = diagnosis.facts
    files = tuple(
        msgspec.structs.replace(file, notes=tuple(say(note) for note in file.notes))
        for file in diagnosis.files
    )
    return msgspec.structs.replace(
        diagnosis,
        headline=say(diagnosis.headline),
        bound=texts(diagnosis.bound, "why"),
        findings=findings,
        together=texts(together, "limit") if together is not None else None,
        ruled_out=tuple(texts(item, "why") for item in diagnosis.ruled_out),
        not_judged=tuple(texts(item, "missing", "command") for item in diagnosis.not_judged),
        warnings=tuple(say(warning) for warning in diagnosis.warnings),
        run=msgspec.structs.replace(diagnosis.run, steps=steps),
        files=files,
        kernels=tuple(texts(row, "kind") for row in diagnosis.kernels),
        facts={say(key): say(value) for key, value in facts.items()},
    )
