"""The checks of a gate and the findings as SARIF 2.1.0, for annotations at the user's lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpuprof.analyzers.gate import Check, failures
from gpuprof.diagnosis import Diagnosis, Finding, Place
from gpuprof.reports import text
from gpuprof.reports.words import catalog

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"critical": "warning", "warning": "warning", "info": "note"}


def to_sarif(
    diagnosis: Diagnosis, checks: Sequence[Check], *, root: Path, strict: bool = False
) -> str:
    """What holds the run up as errors; what is unknown and other findings as warnings and notes.

    Args:
        root: The folder of the sources: places below it are written relative to it, as the
            services that show SARIF beside the code want them.
    """
    words = catalog()
    results = []
    broken = set()
    failed = failures(checks, strict=strict)
    for check in checks:
        if check in failed:
            broken.add(check.rule)
            results.append(_result(check.rule, "error", check.why, check.finding, root))
        elif check.state == "unknown":
            results.append(_result(check.rule, "warning", check.why, check.finding, root))
    for finding in diagnosis.findings:
        if finding.cause not in broken:
            level = _LEVELS[finding.severity]
            results.append(_result(finding.cause, level, _message(finding), finding, root))
    rules = [
        {"id": rule, "shortDescription": {"text": words.name("cause", rule)}}
        for rule in dict.fromkeys(result["ruleId"] for result in results)
    ]
    driver = {"name": "gpuprof", "version": diagnosis.gpuprof, "rules": rules}
    run = {"tool": {"driver": driver}, "results": results, "columnKind": "utf16CodeUnits"}
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2) + "\n"


def _message(finding: Finding) -> str:
    parts = [text.sentence(finding.title), *(text.sentence(e.text) for e in finding.evidence[:1])]
    parts += [text.sentence(fix.title) for fix in finding.fixes[:1]]
    return " ".join(parts)


def _result(
    rule: str, level: str, message: str, finding: Finding | None, root: Path
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": text.clean(rule, 100),
        "level": level,
        "message": {"text": text.clean(message)},
    }
    places = [] if finding is None else [_location(place, root) for place in finding.where]
    if places:
        result["locations"] = places[:1]
    if len(places) > 1:
        result["relatedLocations"] = places[1:]
    return result


def _location(place: Place, root: Path) -> dict[str, Any]:
    name = text.clean(place.file).replace("\\", "/")
    path = Path(name)
    artifact: dict[str, str] = {}
    if path.is_absolute():
        if path.is_relative_to(root):
            name = path.relative_to(root).as_posix()
            artifact["uriBaseId"] = "%SRCROOT%"
        else:
            name = f"file://{quote(name)}"
    else:
        artifact["uriBaseId"] = "%SRCROOT%"
    artifact["uri"] = name if name.startswith("file://") else quote(name)
    location: dict[str, Any] = {"artifactLocation": artifact}
    if place.line is not None and place.line > 0:
        location["region"] = {"startLine": place.line}
        if place.code:
            location["region"]["snippet"] = {"text": text.clean(place.code)}
    return {"physicalLocation": location}
