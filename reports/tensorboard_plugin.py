"""The TensorBoard plugin: shows the diagnosis of every run below the log directory.

TensorBoard loads every plugin that is installed, without a guard: one whose import fails stops it
from starting. So only the standard library and tensorboard are imported with this module, and what
else fails later is an answer to one request.

Files below the log directory are a stranger's. A report is shown in a frame without an origin,
under a policy that runs this version's own script and nothing else: a page of another version, or
one that only looks like a report, is shown without its scripts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorboard.plugins import base_plugin
from werkzeug.wrappers import Request, Response

NAME = "gpuprof"
REPORT_NAME = "report.html"
JSON_NAME = "diagnosis.json"
ASSETS = Path(__file__).resolve().parent / "assets"

MAX_FOLDERS = 5_000
"""Folders that are looked into: `is_active` must answer at once, whatever the log directory is."""

MAX_DEPTH = 8
MAX_RUNS = 500
MAX_BYTES = 64 << 20
"""A report stays under 8 MB, one of 64 ranks under 20 MB."""

FRESH_S = 10.0
"""The folders are looked through at most this often."""

ROOT_RUN = "."


def find_runs(logdir: Path) -> dict[str, Path]:
    """The folders below a log directory that hold a diagnosis, by their relative names, sorted.

    Links are not followed, and hidden folders are left out.
    """
    found: dict[str, Path] = {}
    waiting = [(logdir, 0)]
    looked = 0
    while waiting and looked < MAX_FOLDERS and len(found) < MAX_RUNS:
        folder, depth = waiting.pop()
        looked += 1
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if depth < MAX_DEPTH and not entry.name.startswith("."):
                            waiting.append((Path(entry.path), depth + 1))
                    elif entry.name == JSON_NAME and entry.is_file(follow_symlinks=False):
                        found[folder.relative_to(logdir).as_posix()] = folder
        except OSError:
            continue
    return dict(sorted(found.items()))


class GpuprofPlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """Serves the list of runs, their reports, and the page that shows them."""

    plugin_name = NAME

    def __init__(self, context: base_plugin.TBContext) -> None:
        logdir = str(getattr(context, "logdir", "") or "")
        self._logdir = Path(logdir) if logdir and "://" not in logdir else None
        self._runs: dict[str, Path] = {}
        self._looked = float("-inf")

    def get_plugin_apps(self) -> dict[str, Callable[..., Any]]:
        """Routes below /data/plugin/gpuprof."""
        return {
            "/index.js": _guarded(self._serve_script),
            "/runs": _guarded(self._serve_runs),
            "/report": _guarded(self._serve_report),
        }

    def is_active(self) -> bool:
        """Whether there is anything to show."""
        return bool(self._find())

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """How TensorBoard shows the plugin."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="GPU diagnosis")

    def _find(self) -> dict[str, Path]:
        if self._logdir is not None and time.monotonic() - self._looked > FRESH_S:
            self._runs = find_runs(self._logdir)
            self._looked = time.monotonic()
        return self._runs

    def _serve_script(self, _request: Request) -> Response:
        source = (ASSETS / "tensorboard.js").read_bytes()
        return _response(source, "application/javascript")

    def _serve_runs(self, _request: Request) -> Response:
        return _response(json.dumps(list(self._find())).encode("utf-8"), "application/json")

    def _serve_report(self, request: Request) -> Response:
        folder = self._find().get(request.args.get("run", ""))
        if folder is None:
            return _response(b"no such run", "text/plain", 404)
        report = folder / REPORT_NAME
        if report.is_file() and not report.is_symlink():
            if report.stat().st_size > MAX_BYTES:
                return _response(b"the report is too large to be a report", "text/plain", 413)
            page = report.read_bytes()
        else:
            page = _rendered(folder / JSON_NAME)
        policy = (
            f"default-src 'none'; script-src {_own_script()}; style-src 'unsafe-inline';"
            " img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
        )
        return _response(page, "text/html; charset=utf-8", policy=policy)


def _rendered(path: Path) -> bytes:
    """The page of a run that only kept its diagnosis."""
    from gpuprof.diagnosis import from_json
    from gpuprof.reports.html import write_html
    from gpuprof.reports.words import language_of_environment

    if path.is_symlink() or path.stat().st_size > MAX_BYTES:
        raise ValueError("the diagnosis is too large to be one")
    with tempfile.TemporaryDirectory(prefix="gpuprof-") as folder:
        page = Path(folder) / REPORT_NAME
        write_html(from_json(path.read_bytes()), (), page, lang=language_of_environment())
        return page.read_bytes()


def _own_script() -> str:
    """The hash of the script in the reports that this version writes."""
    from gpuprof.reports.html import script_source

    digest = hashlib.sha256(script_source().encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _response(body: bytes, kind: str, status: int = 200, *, policy: str = "") -> Response:
    response = Response(body, status=status, content_type=kind)
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-cache"
    if policy:
        response.headers["Content-Security-Policy"] = policy
    return response


def _guarded(serve: Callable[[Request], Response]) -> Callable[..., Any]:
    """A WSGI application that answers with 500 instead of raising into TensorBoard."""

    def application(environ: Any, start_response: Any) -> Any:
        try:
            response = serve(Request(environ))
        except Exception as error:
            said = f"gpuprof could not answer: {type(error).__name__}: {error}"
            response = _response(said.encode("utf-8", "replace"), "text/plain", 500)
        return response(environ, start_response)

    return application
