"""Looking on from outside."""

from __future__ import annotations

from pathlib import Path

from gpuprof.attach import outside


def test_where_the_main_thread_was(tmp_path: Path) -> None:
    """Its innermost frame outside libraries; other threads and damaged lines do not count."""
    path = tmp_path / "stacks"
    path.write_text(
        'thread (0x1): "MainThread";main (/home/me/train.py:7);'
        "forward (/x/site-packages/torch/nn.py:3) 30\n"
        'thread (0x1): "MainThread";main (/home/me/train.py:9) 10\n'
        'thread (0x2): "pool";work (/home/me/train.py:1) 900\n'
        "damaged\n"
    )
    assert outside.busiest(path) == [
        "main thread 75% in main (/home/me/train.py:7)",
        "main thread 25% in main (/home/me/train.py:9)",
    ]


def test_no_file_is_no_line(tmp_path: Path) -> None:
    """py-spy may have been refused."""
    assert outside.busiest(tmp_path / "none") == []
