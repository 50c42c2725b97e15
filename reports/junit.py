"""The checks of a gate as JUnit XML: one test case a rule, as CI systems read it."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from gpuprof.analyzers.gate import Check, failures
from gpuprof.reports import text


def to_junit(checks: Sequence[Check], *, strict: bool = False) -> str:
    """The checks as JUnit XML with a final newline. What is unknown is skipped, or
    failed where it holds the run up."""
    failed = failures(checks, strict=strict)
    skipped = [c for c in checks if c.state == "unknown" and c not in failed]
    counts = {"tests": len(checks), "failures": len(failed), "errors": 0, "skipped": len(skipped)}
    attributes = {"name": "gpuprof gate", **{k: str(v) for k, v in counts.items()}}
    root = ElementTree.Element("testsuites", attributes)
    suite = ElementTree.SubElement(root, "testsuite", attributes)
    for check in checks:
        name = text.clean(check.rule, 100)
        case = ElementTree.SubElement(suite, "testcase", {"classname": "gpuprof", "name": name})
        why = text.clean(check.why)
        if check in failed:
            ElementTree.SubElement(case, "failure", {"message": why}).text = why
        elif check in skipped:
            ElementTree.SubElement(case, "skipped", {"message": why})
        else:
            ElementTree.SubElement(case, "system-out").text = why
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
