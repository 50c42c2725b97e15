"""The arrows of docs/architecture.md, held by the import statements themselves."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MOST_LINES = 500
LAYERS = {"collectors": "collectors", "analyzers": "analyzers", "reports": "reports"}
PACKAGES = ("gpuprof", *LAYERS, "fixtures/workloads")

COMMON = {"errors", "diagnosis", "trace", "peaks", ""}
"""What everything may import; "" is the bare package (`from gpuprof import __version__`)."""

FORBIDDEN = {
    "common": {"readers", "collectors", "analyzers", "reports", "workloads"},
    "readers": {"collectors", "analyzers", "reports", "workloads"},
    "collectors": {"analyzers", "reports", "workloads"},
    "analyzers": {"collectors", "reports", "workloads"},
    "reports": {"collectors", "workloads"},
    "workloads": {"readers", "collectors", "analyzers", "reports"},
}
"""Which parts a part must not import: recorders do not judge, judges do not record or draw."""


def sources() -> list[Path]:
    """Every module, at its real path."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                found.append(path)
    return found


def part_of(path: Path) -> str:
    """The part of the flow that a module belongs to, "" for those on top of it."""
    top, *rest = path.relative_to(ROOT).parts
    if top in LAYERS:
        return LAYERS[top]
    if top == "fixtures":
        return "workloads"
    if rest[0] == "readers":
        return "readers"
    return "common" if rest[0].removesuffix(".py") in COMMON - {""} else ""


def imported(path: Path) -> set[str]:
    """The names below `gpuprof` that a module imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        names |= {name.split(".")[1] for name in modules if name.startswith("gpuprof.")}
    return names


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_flow(path: Path) -> None:
    """Arrows run one way: collectors → run → readers → analyzers → reports."""
    wrong = imported(path) & FORBIDDEN.get(part_of(path), set())
    assert not wrong, f"{path.relative_to(ROOT)} must not import {sorted(wrong)}"


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_stay_small(path: Path) -> None:
    """A module that grows past this holds more than one idea."""
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_LINES, f"{path.relative_to(ROOT)} has {lines} lines"


def test_analyzers_do_not_print() -> None:
    """Findings are data; only reports and the command line speak."""
    loud = []
    for path in sources():
        if part_of(path) in ("analyzers", "readers", "common"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
                    loud.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert loud == []


def test_links_lead_to_the_folders_at_the_root() -> None:
    """A checkout without them runs, but type checkers and editors are blind."""
    for name, target in {**{n: n for n in LAYERS}, "workloads": "fixtures/workloads"}.items():
        assert (ROOT / "gpuprof" / name).resolve() == ROOT / target
