"""The browser of this machine, one for all tests of a process; skipped where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fixtures.browser import Browser, program


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = program()
    if found is None:
        pytest.skip("no Chromium on this machine")
    running = Browser(found, tmp_path_factory.mktemp("chromium"))
    try:
        yield running
    finally:
        running.close()
