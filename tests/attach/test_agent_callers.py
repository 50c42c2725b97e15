"""The agent's text stands alone in the target, so it repeats a little of what a session has."""

from __future__ import annotations

from gpuprof.attach import agent_callers
from gpuprof.collectors import line_counts, sync_lines


def test_an_attachment_names_the_calls_that_a_session_names() -> None:
    """A copy that drifts would name a line in one of them only."""
    assert agent_callers.SYNCS == sync_lines.CALLS
    assert agent_callers.MOST_LINES == line_counts.MAX_LINES
