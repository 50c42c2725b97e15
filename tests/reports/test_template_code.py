"""What the template compiles to is kept as bytecode is: never stale, never needed."""

from __future__ import annotations

import marshal
import sys
from pathlib import Path

import pytest
from jinja2 import Environment, Template

from gpuprof.reports import template_code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return tmp_path / "cache"


def said(template: str) -> str:
    environment = Environment(autoescape=True)
    code = template_code.compiled(environment, template)
    page = Template.from_code(environment, code, environment.make_globals(None))
    return page.render(name="<b>")


def kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_the_second_time_what_was_kept_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said("Hello {{ name }}") == "Hello &lt;b&gt;"
    assert len(kept(folder)) == 1
    monkeypatch.setattr(Environment, "compile", lambda *args, **options: pytest.fail("compiled"))
    assert said("Hello {{ name }}") == "Hello &lt;b&gt;"


def test_another_template_is_compiled_anew(folder: Path) -> None:
    assert said("one {{ name }}") == "one &lt;b&gt;"
    assert said("two {{ name }}") == "two &lt;b&gt;"


@pytest.mark.parametrize("damage", [b"", b"x", marshal.dumps(7)])
def test_a_damaged_file_is_passed_over(folder: Path, damage: bytes) -> None:
    assert said("Hello {{ name }}") == "Hello &lt;b&gt;"
    (path,) = kept(folder)
    data = path.read_bytes()
    path.write_bytes(data[: len(template_code._key("Hello {{ name }}"))] + damage)
    assert said("Hello {{ name }}") == "Hello &lt;b&gt;"


def test_nothing_is_written_where_python_writes_no_bytecode(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert said("Hello {{ name }}") == "Hello &lt;b&gt;"
    assert not kept(folder)


def test_a_folder_that_cannot_be_written_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way", encoding="utf-8")
    monkeypatch.setattr(sys, "pycache_prefix", str(blocked))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert said("Hello {{ name }}") == "Hello &lt;b&gt;"
