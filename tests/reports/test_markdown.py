"""Markdown for a pull request: complete, and nothing in it comes from a name."""

from __future__ import annotations

import re

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from fixtures.diagnoses import HOSTILE, hostile_diagnosis, sample_diagnosis
from gpuprof.reports.markdown import code_block, escape, inline_code, to_markdown

RENDERER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def structure(markdown: str) -> list[str]:
    """The kinds of tokens in order, inline ones included: what a renderer takes as markup."""
    kinds = []
    for token in RENDERER.parse(markdown):
        kinds.append(f"{token.type}{token.markup if token.type == 'heading_open' else ''}")
        kinds += [child.type for child in token.children or [] if child.type != "text"]
    return [kind for kind in kinds if kind != "softbreak"]


def test_hostile_text_changes_no_structure() -> None:
    """But for code spans in one place: what is to be typed stands between backticks."""
    plain = structure(to_markdown(sample_diagnosis(2)))
    hostile = structure(to_markdown(hostile_diagnosis(world_size=2)))
    assert [k for k in hostile if k != "code_inline"] == [k for k in plain if k != "code_inline"]
    assert not {"html_block", "html_inline", "image", "link_open"} & set(hostile)


@given(st.text(alphabet="`*_[]()<>#+-.!|~&@:/w1$ \n\\ab", max_size=60))
def test_escaped_text_is_text(value: str) -> None:
    kinds = structure(f"- {escape(value)}x")
    assert set(kinds) <= {
        "bullet_list_open", "list_item_open", "paragraph_open", "inline", "text_special",
        "paragraph_close", "list_item_close", "bullet_list_close",
    }  # fmt: skip


@given(st.text(alphabet="`a \n|", min_size=1, max_size=40))
def test_code_cannot_close_its_fence(value: str) -> None:
    tokens = RENDERER.parse("\n".join(code_block(value)))
    assert [token.type for token in tokens] == ["fence"]
    inline = RENDERER.parse(f"a {inline_code('x' + value + 'x')} b")[1].children or []
    assert [token.type for token in inline] == ["text", "code_inline", "text"]


def test_mentions_and_addresses_do_not_link() -> None:
    shown = escape("@everyone #12 http://x.example www.x.example")
    assert not re.search(r"[@#]\w", shown)
    assert "://" not in shown.replace(r"\://", "")
    assert "www." not in shown


def test_everything_of_the_diagnosis_is_there() -> None:
    sample = sample_diagnosis()
    shown = to_markdown(sample)
    for part in (
        sample.headline,
        "| Waiting for input | 58.9 ms | 33.6 % |",
        "| **Step** | 175.2 ms | 100.0 % |",
        "### 1.",
        "num_workers=4,",
        "`train.py:45`",
        "## Ruled out",
        "## Could not be judged",
        "Record more steps: `gpuprof run --steps 500 -- python train.py`",
        "5e2f",
    ):
        assert part in shown
    assert shown.endswith("\n")
    assert "\n\n\n" not in shown


def test_no_step_and_no_findings_still_make_a_page() -> None:
    sample = sample_diagnosis()
    run = msgspec.structs.replace(
        sample.run, steps=msgspec.structs.replace(sample.run.steps, count=0, median_ms=None)
    )
    shown = to_markdown(msgspec.structs.replace(sample, run=run, findings=(), together=None))
    assert "Of what could be judged, nothing is worth changing" in shown
    judged = msgspec.structs.replace(sample, run=run, findings=(), together=None, not_judged=())
    assert "Nothing that is worth changing was found" in to_markdown(judged)
    assert HOSTILE not in shown
