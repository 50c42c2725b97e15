"""TensorBoard shows the diagnosis, and nothing of gpuprof can keep it from starting."""

from __future__ import annotations

import ast
import base64
import html
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.diagnoses import hostile_diagnosis, hostile_traces, sample_diagnosis, sample_traces
from fixtures.runs import training
from gpuprof.cli import main
from gpuprof.diagnosis import to_json

pytest.importorskip("tensorboard")
PATIENCE_S = 90.0
ROOT = Path(__file__).resolve().parents[2]


def events(folder: Path) -> list[Any]:
    """The events that TensorBoard's own loader reads."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [
        event
        for path in sorted(folder.glob("events.out.tfevents*"))
        for event in EventFileLoader(str(path)).Load()
    ]


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory with three runs: whole, only its JSON, and a hostile one."""
    from gpuprof.reports.tensorboard import write_tensorboard

    folder = tmp_path_factory.mktemp("logs")
    write_tensorboard(sample_diagnosis(), sample_traces(), folder / "exp" / "first")
    (folder / "kept").mkdir()
    (folder / "kept" / "diagnosis.json").write_bytes(to_json(sample_diagnosis()))
    write_tensorboard(hostile_diagnosis(), hostile_traces(), folder / "hostile & <b>")
    return folder


def test_the_module_imports_only_the_standard_library_and_tensorboard() -> None:
    """TensorBoard loads plugins without a guard."""
    tree = ast.parse((ROOT / "reports" / "tensorboard_plugin.py").read_text(encoding="utf-8"))
    names = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).split(".")[0])
    assert names <= set(sys.stdlib_module_names) | {"tensorboard", "werkzeug", "__future__"}


def test_scalars_and_the_text_are_written(logdir: Path) -> None:
    found: dict[str, list[tuple[int, Any]]] = {}
    for event in events(logdir / "exp" / "first"):
        for value in event.summary.value:
            tensor = value.tensor
            data = tensor.float_val[0] if tensor.float_val else tensor.string_val[0]
            found.setdefault(value.tag, []).append((event.step, data))
    diagnosis = sample_diagnosis()
    steps = [value for _, value in found["gpuprof/step_ms"]]
    assert steps == pytest.approx(diagnosis.ranks[0].step_ms, rel=1e-5)
    assert [number for number, _ in found["gpuprof/step_ms"]] == list(range(len(steps)))
    total = sum(found[f"gpuprof/budget/{bucket}"][0][1] for bucket in diagnosis.budget)
    assert total == pytest.approx(1.0, abs=1e-5)
    assert f"gpuprof/gain/{diagnosis.findings[0].cause}" in found
    assert found["gpuprof/findings"][0][1].decode().startswith("# ")


def test_a_second_export_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """And leaves the event files of others alone."""
    from gpuprof.reports.tensorboard import write_tensorboard

    others = tmp_path / "events.out.tfevents.1.host.1.0"
    others.write_bytes(b"")
    for _ in range(2):
        write_tensorboard(sample_diagnosis(), sample_traces(), tmp_path)
    tags = [(value.tag, event.step) for event in events(tmp_path) for value in event.summary.value]
    assert len(tags) == len(set(tags)) > 5
    assert others.exists()


def test_runs_are_found_without_following_links(logdir: Path, tmp_path: Path) -> None:
    from gpuprof.reports.tensorboard_plugin import find_runs

    assert list(find_runs(logdir)) == ["exp/first", "hostile & <b>", "kept"]
    (tmp_path / "link").symlink_to(logdir)
    (tmp_path / "diagnosis.json").symlink_to(logdir / "kept" / "diagnosis.json")
    assert find_runs(tmp_path) == {}
    assert find_runs(tmp_path / "missing") == {}


class Context:
    def __init__(self, logdir: str) -> None:
        self.logdir = logdir


def get(plugin: Any, path: str, **query: str) -> Any:
    from werkzeug.test import Client

    return Client(plugin.get_plugin_apps()[path]).get("/", query_string=query)


def test_only_runs_that_were_found_are_served(logdir: Path) -> None:
    from gpuprof.reports.tensorboard_plugin import GpuprofPlugin

    plugin = GpuprofPlugin(Context(str(logdir / "exp")))
    assert plugin.is_active()
    assert json.loads(get(plugin, "/runs").data) == ["first"]
    assert get(plugin, "/report", run="first").status_code == 200
    for outside in ("../kept", "../../etc", str(logdir / "kept"), "", "first/.."):
        assert get(plugin, "/report", run=outside).status_code == 404


def test_a_foreign_page_runs_no_script_of_its_own(logdir: Path, tmp_path: Path) -> None:
    """The policy names this version's script and no other."""
    from gpuprof.reports.html import script_source
    from gpuprof.reports.tensorboard_plugin import GpuprofPlugin, _own_script

    (tmp_path / "diagnosis.json").write_bytes(to_json(sample_diagnosis()))
    (tmp_path / "report.html").write_text("<script>alert(1)</script>")
    answer = get(GpuprofPlugin(Context(str(tmp_path))), "/report", run=".")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert re.findall(r"script-src ([^;]*);", policy) == [_own_script()]
    whole = get(GpuprofPlugin(Context(str(logdir))), "/report", run="exp/first").text
    assert f"<script>{script_source()}</script>" in whole
    assert _own_script() in html.unescape(whole), "the page's own policy names the same script"


@pytest.mark.parametrize("where", ["", "s3://bucket/logs", "/nonexistent"])
def test_a_log_directory_that_is_none_makes_the_plugin_idle(where: str) -> None:
    from gpuprof.reports.tensorboard_plugin import GpuprofPlugin

    assert not GpuprofPlugin(Context(where)).is_active()


def test_a_broken_diagnosis_is_an_answer_and_no_crash(tmp_path: Path) -> None:
    from gpuprof.reports.tensorboard_plugin import GpuprofPlugin

    (tmp_path / "diagnosis.json").write_text("{")
    answer = get(GpuprofPlugin(Context(str(tmp_path))), "/report", run=".")
    assert answer.status_code == 500
    assert answer.content_type.startswith("text/plain")


def test_the_command_writes_a_log_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = training(3, load_us=2_000).trace.write(tmp_path / "t.json.gz")
    out = tmp_path / "logs" / "mine"
    with pytest.raises(SystemExit) as caught:
        main(["report", str(trace), "--format", "tensorboard", "-o", str(out)])
    assert caught.value.code == 0
    assert str(out) in capsys.readouterr().out
    assert {"report.html", "diagnosis.json"} < {path.name for path in out.iterdir()}


@pytest.fixture(scope="module")
def server(logdir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real TensorBoard on a free loopback port, with the plugin found by its entry point."""
    entry = tmp_path_factory.mktemp("entry")
    info = entry / "gpuprof_test_plugin-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gpuprof-test-plugin\nVersion: 0\n")
    declared = re.search(
        r"\[project\.entry-points\.tensorboard_plugins\]\n(.*)\n",
        (ROOT / "pyproject.toml").read_text(),
    )
    assert declared is not None
    from importlib.metadata import entry_points

    if not any(point.name == "gpuprof" for point in entry_points(group="tensorboard_plugins")):
        line = declared[1].replace('"', "")
        (info / "entry_points.txt").write_text(f"[tensorboard_plugins]\n{line}\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": f"{entry}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--load_fast", "false"]
    log = entry / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with urllib.request.urlopen(f"{address}/data/plugins_listing", timeout=5):
                    break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.3)
        yield address
        assert "will become an error" not in log.read_text(), "TensorBoard's own security checks"
    finally:
        process.terminate()
        process.wait(20)


def fetch(address: str) -> str:
    with urllib.request.urlopen(address, timeout=20) as answer:
        text: str = answer.read().decode("utf-8")
        return text


def test_tensorboard_lists_the_plugin_and_serves_its_pages(server: str, logdir: Path) -> None:
    listing = json.loads(fetch(f"{server}/data/plugins_listing"))
    assert listing["gpuprof"]["enabled"] is True
    assert listing["gpuprof"]["tab_name"] == "GPU diagnosis"
    assert {"scalars", "text"} <= set(listing)
    entry = fetch(f"{server}/data/plugin_entry.html?name=gpuprof")
    assert "./index.js" in entry
    base = f"{server}/data/plugin/gpuprof"
    assert "export async function render" in fetch(f"{base}/index.js")
    runs = json.loads(fetch(f"{base}/runs"))
    assert runs == ["exp/first", "hostile & <b>", "kept"]
    for run in runs:
        page = fetch(f"{base}/report?run={urllib.parse.quote(run)}")
        assert page.lstrip().lower().startswith("<!doctype html>")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(f"{base}/report?run=..")


def test_the_plugins_page_shows_the_report_in_a_browser(server: str, browser: Any) -> None:
    """A list of the runs, and the first one's report in a frame that has no origin of its own."""
    target = browser.call("Target.createTarget", {"url": "about:blank"})["targetId"]
    attached = browser.call("Target.attachToTarget", {"targetId": target, "flatten": True})

    def call(method: str, **params: Any) -> Any:
        return browser.call(method, params, attached["sessionId"])

    def value(expression: str) -> Any:
        answer = call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    try:
        call("Page.navigate", url=f"{server}/data/plugin_entry.html?name=gpuprof")
        deadline = time.monotonic() + PATIENCE_S / 3
        while not value("!!document.querySelector('iframe[src]')"):
            assert time.monotonic() < deadline, "the page never showed a report"
            time.sleep(0.2)
        names = value("[...document.querySelectorAll('option')].map((option) => option.value)")
        assert names == ["exp/first", "hostile & <b>", "kept"]
        assert value("document.querySelectorAll('b').length") == 0
        sandbox = value("document.querySelector('iframe').getAttribute('sandbox')")
        assert "allow-same-origin" not in sandbox
        # A frame without an origin runs in a process, and so is a target, of its own.
        while not any(
            "/report?run=exp" in one["url"]
            for one in browser.call("Target.getTargets", {})["targetInfos"]
        ):
            assert time.monotonic() < deadline, "the frame never loaded the report"
            time.sleep(0.2)
        if os.environ.get("GPUPROF_SCREENSHOTS"):
            time.sleep(1.5)
            shot = base64.b64decode(call("Page.captureScreenshot", format="png")["data"])
            (Path(os.environ["GPUPROF_SCREENSHOTS"]) / "tensorboard.png").write_bytes(shot)
    finally:
        browser.call("Target.closeTarget", {"targetId": target})
