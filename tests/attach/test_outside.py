"""Looking on from outside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpuprof.attach import outside
from gpuprof.collectors.sampler_client import SamplerHandle
from gpuprof.run import SAMPLES


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


def test_the_seconds_begin_when_the_sampler_has(tmp_path: Path) -> None:
    """On a busy machine it starts for longer than some look on: nothing could be analyzed then."""
    samples = tmp_path / SAMPLES
    samples.mkdir()
    said: list[str] = []

    def told(what: str, done: int, total: int) -> None:
        said.append(what)
        if len(said) == 3:
            (samples / "node-0000.jsonl").write_text("{}\n")

    waits = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE) as sampler:
        outside.until_sampled(tmp_path, SamplerHandle(sampler, samples), told)
        assert len(said) == 3
        sampler.communicate()
    (samples / "node-0000.jsonl").unlink()
    outside.until_sampled(tmp_path, SamplerHandle(sampler, samples), told)  # one that has ended
    assert len(said) == 3
