"""The documents say what is so: fields, commands, files and links exist, and none is missing."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from gpuprof import diagnosis
from gpuprof.diagnosis import BUCKETS, CAUSES

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], key=lambda path: path.as_posix()
)
STRUCTS = [
    value
    for value in vars(diagnosis).values()
    if isinstance(value, type) and issubclass(value, msgspec.Struct) and value is not msgspec.Struct
]


def section(page: str, title: str) -> str:
    """The text under a heading, up to the next one."""
    found = re.search(rf"^#+ {title}$(.*?)(?=^#|\Z)", page, re.M | re.S)
    assert found is not None, f"docs/diagnosis.md has no section {title}"
    return found[1]


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_field_of_the_diagnosis_is_documented(struct: type[msgspec.Struct]) -> None:
    """Other programs read diagnosis.json by that page; its star marks fields that may be absent."""
    rows = section((ROOT / "docs/diagnosis.md").read_text(encoding="utf-8"), struct.__name__)
    documented = {}
    for cell in re.findall(r"^\| (`[^|]*) \|", rows, re.M):
        for name, star in re.findall(r"`(\w+)`(\*?)", cell):
            documented[name] = bool(star)
    fields = msgspec.structs.fields(struct)
    assert set(documented) == {field.encode_name for field in fields}
    if struct is not diagnosis.Diagnosis:
        omits = struct.__struct_config__.omit_defaults
        wrong = {
            field.encode_name
            for field in fields
            if documented[field.encode_name] != (omits and not field.required)
        }
        assert not wrong


def test_every_cause_and_bucket_is_documented() -> None:
    """The ids are what other programs match on."""
    page = (ROOT / "docs/diagnosis.md").read_text(encoding="utf-8")
    for name in (*CAUSES, *BUCKETS):
        assert f"`{name}`" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link names a file of this repository."""
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    """A path in code style that starts in one of our folders is there."""
    text = page.read_text(encoding="utf-8")
    tops = r"gpuprof|collectors|analyzers|reports|fixtures|tests|benchmarks|docs|scripts|\.ci"
    for path in re.findall(rf"`\.?/?((?:{tops})/[\w./-]*)`", text):
        assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_readme_gives_the_commands_that_ci_runs() -> None:
    """The test command of the README is the one that CI calls."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "./scripts/demo" in readme
    assert "./scripts/test" in readme
    assert "./scripts/test" in (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_changelog_knows_this_version() -> None:
    """A release without a word about it is a mistake."""
    import gpuprof

    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {gpuprof.__version__}" in changelog
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{gpuprof.__version__}"' in project
