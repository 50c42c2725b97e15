"""What `doctor`, `plan` and `attach` say is said in Chinese: read from where they say it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from gpuprof.attach.access import Access
from gpuprof.cli import cli
from gpuprof.commands import attach
from gpuprof.doctor import Check
from gpuprof.reports import columns
from gpuprof.reports.doctor import to_text
from gpuprof.reports.words import speaker
from gpuprof.reports.words_en import ENGLISH

ROOT = Path(__file__).resolve().parents[2]
SAYS: dict[str, tuple[str, ...]] = {
    "gpuprof/doctor.py": ("Check", "return"),
    "gpuprof/doctor_software.py": ("Check",),
    "gpuprof/attach/access.py": ("Access",),
    "gpuprof/attach/kineto_door.py": ("why_closed",),
    "gpuprof/attach/plan.py": ("plan",),
    "gpuprof/attach/outside.py": ("append", "_end_spy", "busiest"),
    "gpuprof/attach/standstill.py": ("told",),
    "gpuprof/attach/by_door.py": ("told",),
    "gpuprof/commands/attach.py": ("_say", "_stops"),
    "analyzers/communication_plan.py": ("Item", "append"),
}
"""Modules, and the calls and functions in them whose texts are shown to a person."""

NO_SENTENCE = re.compile(r"[,;(].*|\S*")
"""Parts that are added to a sentence, and paths."""

PARTS = ("what", "why", "remedy")
"""Names under which parts of what is shown are kept on the way."""

NAMES = {text for key, text in ENGLISH.items() if key.startswith("check.")}


def filled(node: ast.expr) -> str | None:
    """A text with 7 for each of its values; None for what is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "7" for part in node.values
        )
    return None


def texts(tree: ast.AST) -> Iterator[str]:
    """Texts under a node; those inside the values of another one are phrases of it."""
    for node in ast.iter_child_nodes(tree):
        found = filled(node) if isinstance(node, ast.expr) else None
        if found is not None:
            yield found
        else:
            yield from texts(node)


def said_in(path: str, names: tuple[str, ...]) -> list[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            if name in names:
                found += [text for argument in node.args for text in texts(ast.Expr(argument))]
                found += [t for key in node.keywords for t in texts(ast.Expr(key.value))]
        elif isinstance(node, ast.FunctionDef) and node.name in names:
            found += [text for one in node.body[1:] for text in texts(one)]
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in PARTS:
            found += list(texts(node))
    return found


@pytest.mark.parametrize("path", SAYS)
def test_every_sentence_of_a_command_has_its_translation(path: str) -> None:
    """A new sentence needs a pair in `reports/sentences_zh_commands.py`."""
    say = speaker("zh-CN")
    sentences = {
        line.strip()
        for line in said_in(path, SAYS[path])
        if len(re.findall(r"[A-Za-z]{2,}", line)) >= 2
    }
    sentences = {one for one in sentences - NAMES if not NO_SENTENCE.fullmatch(one)}
    assert sentences, "nothing is said there any more: mend the list"
    left = [line for line in sentences if not re.search("[一-鿿]", say(line))]
    assert left == []


def test_what_attach_puts_together_is_translated_whole() -> None:
    """Sentences with a part more or less."""
    say = speaker("zh-CN")
    targets: Any = [SimpleNamespace(pid=100 + number) for number in range(10)]
    way = Access("pending call", why="ptrace is switched off on this machine (ptrace_scope 3)")
    told = [attach._said(targets[:1], [way]), attach._said(targets, [way]), attach._less(way)]
    told.append(attach._less(replace(way, remedy="start the job with gpuprof run")))
    told.append("process 7 (pid 1 in its own namespace): python, Python 3.11")
    for line in told:
        words = re.sub(
            r"Ctrl-C|pending call|gpuprof run|ptrace_scope|ptrace|[Pp]ython|pid", "", say(line)
        )
        assert not re.search("[a-z]{3,}", words), say(line)


def test_doctor_speaks_chinese_in_straight_columns_and_narrow_ones() -> None:
    checks = [
        Check("torch", "limited", "not installed here", "", "pip install torch"),
        Check("shared memory", "ok", "/dev/shm has 4 GiB"),
        Check("gpu:0 utilization", "missing", "no utilization curve", "x" * 60),
    ]
    lines = to_text(checks, lang="zh-CN", width=40).splitlines()
    assert max(map(columns.cells, lines)) <= 40
    assert lines[0].startswith("受限 ") and "这里没有安装" in lines[0]
    assert any("共享内存" in line for line in lines)
    assert any("gpu:0 利用率" in line for line in lines)


def test_doctor_and_plan_take_the_language(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuprof.doctor.probe_nvml", list)
    shown = CliRunner().invoke(cli, ["doctor", "--lang", "zh-CN"])
    assert "正常" in shown.output
    arguments = ["--ranks", "32", "--device", "H100", "--network-gbps", "3200", "--params", "8b"]
    command = ["plan", "communication", *arguments, "--strategy", "fsdp", "--step-ms", "900"]
    planned = CliRunner().invoke(cli, [*command, "--lang", "zh-CN"])
    assert planned.exit_code == 0, planned.output
    assert "参数，前向和反向" in planned.output
    assert "受限于延迟" in planned.output
    assert "32 个 rank，在 4 个节点上" in planned.output
    heads = [line for line in planned.output.splitlines() if "次数" in line or "合计，" in line]
    assert len({columns.cells(line) for line in heads}) == 1
