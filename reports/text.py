"""How numbers, names and other people's text are written: the same in every output.

Text that came out of a trace is never trusted: `clean` makes it one printable, bounded line before
it reaches a terminal, a page or a pull request. Escaping for the format itself is the format's job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuprof.analyzers import wording

NBSP = "\u00a0"
"""Between a number and its unit, so that a line never breaks there."""

MAX_TEXT = 2_000
"""A sentence longer than this is no sentence; a hostile name can be a million characters."""

MAX_KERNEL_NAME = 72
"""Longest short kernel name: what a table column holds beside five numbers."""

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1 controls: escape sequences start with one
    "\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff"  # invisible and text-reversing characters
    "\ud800-\udfff]"  # lone surrogates cannot be written as UTF-8
)
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:ns|µs|us|ms|s|kB|MB|GB|GB/s|TFLOP/s|W|°C)\b)")
_CHINESE = re.compile("[一-鿿]")
_MEMORY_OP = re.compile(r"mem(cpy|set)", re.IGNORECASE)
_MANGLED = re.compile(r"^_ZN?(?=\d)")
_FUNCTOR = re.compile(r"\b(\w*Functor\w*|\w+_kernel_cuda|\w+Ops?)\b")
_NAMES_ONLY_ITS_ARGUMENT = {"Kernel", "Kernel2", "device_kernel", "kernel"}


def clean(text: object, limit: int = MAX_TEXT) -> str:
    """One printable line: control and invisible characters become U+FFFD, the rest is cut at limit.

    Line breaks and tabs become spaces; at most `limit` characters come back, the last one an
    ellipsis when something was cut.
    """
    line = clean_block(text, limit)
    return " ".join(line.split()) if ("\n" in line or "\t" in line or "  " in line) else line


def clean_block(text: object, limit: int = 4 * MAX_TEXT) -> str:
    """Like `clean`, but keeps line breaks and indentation: for code."""
    raw = str(text)
    if len(raw) > limit:
        raw = raw[: limit - 1] + "…"
    raw = raw.replace("\r\n", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    return _UNPRINTABLE.sub("\ufffd", raw)


def fits(value: str, encoding: str) -> bool:
    """Whether an encoding has all characters of a text."""
    try:
        value.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def glue(line: str) -> str:
    """Puts a no-break space between each number and its unit. For sentences, never for code."""
    return _BEFORE_UNIT.sub(NBSP, line)


def file_name(path: str) -> str:
    """The last part of a path written on any system."""
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1] or path


def sentence(line: str) -> str:
    """With a capital letter and a full stop, unless it begins with an identifier."""
    line = clean(line).strip()
    first = line.split(" ", 1)[0]
    if first.isalpha() and first.islower():
        line = line[0].upper() + line[1:]
    if not line or line[-1] in ".!?:…。！？：":
        return line
    return line + ("。" if _CHINESE.search(line) else ".")


def typed(line: str) -> list[tuple[str, bool]]:
    """A sentence in pieces, each with whether it stood between backticks: what is to be typed."""
    pieces = clean(line).split("`")
    if len(pieces) % 2 == 0:  # a backtick without its other half is a character like any other
        return [(clean(line), False)]
    return [(piece, index % 2 == 1) for index, piece in enumerate(pieces) if piece]


def _demangled(name: str) -> str:
    """The last identifier of an Itanium-mangled name, without its template arguments."""
    at = 3 if name.startswith("_ZN") else 2
    last = name
    while found := re.match(r"(\d{1,3})", name[at:]):
        begin = at + found.end()
        at = begin + int(found[1])
        last = name[begin:at] or last
    return last


def _without_brackets(name: str) -> tuple[str, str]:
    """The name outside of its template brackets, and the text inside the first one."""
    outside: list[str] = []
    inside: list[str] = []
    depth = 0
    for character in name:
        if character == "<":
            depth += 1
        elif character == ">" and depth:
            depth -= 1
        elif depth == 0:
            outside.append(character)
            continue
        inside.append(character)
    return "".join(outside), "".join(inside)


def short_kernel_name(name: str, limit: int = MAX_KERNEL_NAME) -> str:
    """A kernel's name without its parameter list, template arguments and namespaces.

    A functor or a generated name that alone tells two instances apart is kept:
    `void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, …>(…)`
    becomes `vectorized_elementwise_kernel<CUDAFunctor_add>`. Copies and memsets stay as they are.
    """
    text = clean(name, 4_000)
    if not _MEMORY_OP.match(text):
        text = text.removesuffix(" [clone .kd]").replace("(anonymous namespace)::", "")
        text = text.removeprefix("void ")
        if _MANGLED.match(text):
            text = _demangled(text)
        outside, inside = _without_brackets(text)
        head = outside.split("(", 1)[0].strip() or outside
        base = head.rsplit("::", 1)[-1].strip()
        if base and not base.isspace():
            first_argument = inside.lstrip("<").split(",", 1)[0].split("<", 1)[0]
            first_argument = first_argument.rstrip("> ").rsplit("::", 1)[-1]
            functor = _FUNCTOR.search(inside)
            if base in _NAMES_ONLY_ITS_ARGUMENT and first_argument:
                base = first_argument
            elif functor and ("elementwise" in base or "reduce" in base):
                base = f"{base}<{functor.group(1)}>"
            text = base
    if len(text) > limit:
        keep = limit - 1
        text = f"{text[: keep - keep // 3]}…{text[-(keep // 3) :]}"
    return text


def number(value: float, digits: int) -> str:
    """A number with a fixed count of decimals and thousands apart, as sentences write them."""
    return f"{value:,.{digits}f}"


def milliseconds(value: float, *, unit: bool = True) -> str:
    """A duration given in ms, in the unit that reads best: `175.2 ms`, `1.24 s`, `45 µs`."""
    text, _, name = wording.milliseconds(value).partition(" ")
    return f"{text}{NBSP}{name}" if unit else text


def percent(share: float) -> str:
    """A share as a percentage: whole from 10 % up, one decimal below, `< 0.1 %` for a trace."""
    value = 100 * share
    size = abs(value)
    if 0 < size < 0.1:
        return f"<{NBSP}0.1{NBSP}%"
    return f"{number(value, 0 if size >= 9.95 or size == 0 else 1)}{NBSP}%"


def percent_range(low: float, high: float) -> str:
    """`31–36 %`; one number where both ends read the same."""
    first, last = percent(low), percent(high)
    if first == last:
        return first
    return f"{first.removesuffix(NBSP + '%')}–{last}"


def size(count: int) -> str:
    """A number of bytes: `812 B`, `1.2 MB` (decimal units, as file managers show them)."""
    value = float(count)
    for name in ("B", "kB", "MB", "GB"):
        if value < 1_000 or name == "GB":
            return f"{number(value, 0 if name == 'B' or value >= 100 else 1)}{NBSP}{name}"
        value /= 1_000
    raise AssertionError("unreachable")


def count(value: int) -> str:
    """An integer with its thousands separated."""
    return number(value, 0)


def rank_list(ranks: Sequence[int]) -> str:
    """`0–3, 7`: ranks in order, runs of three and more folded."""
    ordered = sorted(set(ranks))
    parts: list[str] = []
    at = 0
    while at < len(ordered):
        end = at
        while end + 1 < len(ordered) and ordered[end + 1] == ordered[end] + 1:
            end += 1
        if end - at >= 2:
            parts.append(f"{ordered[at]}–{ordered[end]}")
        else:
            parts.extend(str(value) for value in ordered[at : end + 1])
        at = end + 1
    return ", ".join(parts)


def apportion(shares: Sequence[float], total: float, digits: int) -> list[float]:
    """Rounds `shares × total` to `digits` decimals so that the parts add up to the rounded total.

    The largest-remainder method: each part is cut, and what is missing goes to the parts that lost
    most. So a table adds up to the number under it, and no part is off by more than one unit.
    """
    unit = 10.0**-digits
    weight = sum(shares)
    if weight <= 0:
        return [0.0 for _ in shares]
    exact = [share / weight * total / unit for share in shares]
    floors = [int(value) for value in exact]
    missing = round(total / unit) - sum(floors)
    by_loss = sorted(range(len(exact)), key=lambda i: floors[i] - exact[i])
    for index in by_loss[: max(0, missing)]:
        floors[index] += 1
    return [value * unit for value in floors]
