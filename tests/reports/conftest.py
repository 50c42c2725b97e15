"""A headless Chromium, spoken to over DevTools' pipe: no port, no library, skipped where absent."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 60.0
"""A loaded machine with two cores needs seconds to start a browser."""


class Page:
    """One tab: what it logged and asked for since it was opened."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser = browser
        self.session = session
        self.requests: list[str] = []
        self.problems: list[str] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, params, self.session)

    def eval(self, expression: str) -> Any:
        """Value of a JavaScript expression; a promise is awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until the expression is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.eval(expression):
            assert time.monotonic() < deadline, f"never true: {expression}; {self.problems}"
            time.sleep(0.05)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        from base64 import b64decode

        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(b64decode(data["data"]))

    def take(self, event: dict[str, Any]) -> None:
        method, params = event["method"], event["params"]
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:2000])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(f"console: {params['args']}")
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"dialog: {params['message']}")
            self.browser.send("Page.handleJavaScriptDialog", {"accept": False}, self.session)


class Browser:
    """A running Chromium."""

    def __init__(self, program: str, profile: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        flags = (
            "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
            "--disable-background-networking --disable-component-update --disable-sync "
            "--disable-dev-shm-usage --remote-debugging-pipe"
        )
        # DevTools' pipe is file descriptors 3 and 4 of the browser, whatever they are here.
        redirect = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        self.process = subprocess.Popen(
            ["bash", "-c", redirect, "sh", program, *flags.split(), f"--user-data-dir={profile}"],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._next = 0
        self._pages: dict[str, Page] = {}

    def send(self, method: str, params: dict[str, Any], session: str | None) -> int:
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        return self._next

    def call(
        self, method: str, params: dict[str, Any], session: str | None = None
    ) -> dict[str, Any]:
        number = self.send(method, params, session)
        while True:
            while b"\0" not in self._buffer:
                chunk = os.read(self._read, 1 << 20)
                assert chunk, "the browser is gone"
                self._buffer += chunk
            line, self._buffer = self._buffer.split(b"\0", 1)
            message = json.loads(line)
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            if "method" in message and message.get("sessionId") in self._pages:
                self._pages[message["sessionId"]].take(message)

    @contextmanager
    def open(
        self,
        path: Path,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        script: bool = True,
        settled: str = "!!document.documentElement.dataset.timeline",
    ) -> Iterator[Page]:
        """A tab with the file, loaded and (with script) what it draws settled."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = Page(self, session["sessionId"])
        self._pages[page.session] = page
        try:
            for domain in ("Page", "Runtime", "Log", "Network"):
                page.call(f"{domain}.enable")
            page.call(
                "Emulation.setDeviceMetricsOverride",
                width=width, height=height, deviceScaleFactor=1, mobile=False,
            )  # fmt: skip
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            page.call("Emulation.setEmulatedMedia", features=[scheme])
            page.call("Emulation.setScriptExecutionDisabled", value=not script)
            page.call("Page.navigate", url=path.resolve().as_uri())
            page.wait("document.readyState === 'complete' && location.protocol === 'file:'")
            if script:
                page.wait(settled)
            yield page
        finally:
            self._pages.pop(page.session)
            self.call("Target.closeTarget", {"targetId": target})

    def close(self) -> None:
        with suppress(OSError):
            self.send("Browser.close", {}, None)
        try:
            self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._write)
        os.close(self._read)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
    if program is None:
        pytest.skip("no Chromium on this machine")
    running = Browser(program, tmp_path_factory.mktemp("chromium"))
    try:
        yield running
    finally:
        running.close()
