"""Hooks see what they should, do nothing in a child, and leave what others put on top."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from gpuprof.collectors import nccl_capture
from gpuprof.collectors.hooks import (
    LOADER_PATIENCE,
    Patches,
    StepFinder,
    named_parts,
    steps_found,
)
from gpuprof.collectors.step_log import StepLog
from gpuprof.late_import import when_imported


class Optimizer:
    """What can be referred to weakly, as torch's can."""


class Owner:
    def method(self) -> str:
        return "original"


class Heir(Owner):
    pass


def test_patches_come_off_and_inheritance_comes_back() -> None:
    """A method that was inherited is inherited again, not pinned to the heir."""
    patches = Patches()
    patches.put(Owner, "method", lambda self: "patched")
    patches.put(Heir, "method", lambda self: "heir's")
    assert (Owner().method(), Heir().method()) == ("patched", "heir's")
    patches.undo()
    assert (Owner().method(), Heir().method()) == ("original", "original")
    assert "method" not in vars(Heir)


def test_a_patch_on_top_of_ours_stays() -> None:
    """Taking ours off must not take theirs off."""
    patches = Patches()
    patches.put(Heir, "method", lambda self: "ours")
    ours = Heir.method
    try:
        Heir.method = lambda self: "theirs on " + ours(self)  # type: ignore[method-assign]
        patches.undo()
        assert Heir().method() == "theirs on ours"
    finally:
        del Heir.method


def test_first_optimizer_sets_the_beat() -> None:
    """Two optimizers step in one step of a GAN: one of them counts."""
    seen: list[int] = []
    finder = StepFinder(lambda: seen.append(1))
    first, second = Optimizer(), Optimizer()
    for _ in range(3):
        finder.optimizer_stepped(first)
        finder.optimizer_stepped(second)
    assert (len(seen), finder.source) == (3, "optimizer")


def test_batches_count_only_without_an_optimizer() -> None:
    """Micro-batches of gradient accumulation are no steps; an inference loop's batches are."""
    seen: list[int] = []
    finder = StepFinder(lambda: seen.append(1))
    for _ in range(LOADER_PATIENCE):
        finder.batch_fetched()
    assert seen == []
    finder.batch_fetched()
    assert (len(seen), finder.source) == (1, "loader")
    finder.optimizer_stepped(Optimizer())
    finder.batch_fetched()
    assert (len(seen), finder.source) == (2, "optimizer")


def test_a_forked_child_makes_no_steps() -> None:
    """A loader's worker inherits the hooks; nothing comes of it."""
    finder = StepFinder(lambda: os._exit(3))
    child = os.fork()
    if child == 0:
        finder.optimizer_stepped(Optimizer())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_running_iterators_are_seen() -> None:
    """A loader that was being read before the hook came is read through it."""
    torch = pytest.importorskip("torch")
    seen: list[int] = []
    batches = iter(torch.utils.data.DataLoader(list(range(LOADER_PATIENCE + 5))))
    next(batches)
    with steps_found(lambda: seen.append(1)):
        rest = list(batches)
    assert (len(rest), len(seen)) == (LOADER_PATIENCE + 4, 4)


def test_saves_and_foreign_loaders_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.distributed.checkpoint and loaders that draw nothing themselves bear known names."""
    torch = pytest.importorskip("torch")
    from gpuprof.analyzers.host import is_loader_name

    class EpochIterator:
        def __next__(self) -> int:
            return 5

    module: Any = types.ModuleType("ffcv.loader.epoch_iterator")
    module.EpochIterator = EpochIterator
    saving: Any = types.ModuleType("torch.distributed.checkpoint")
    saving.save = lambda: "saved"
    saving.__spec__ = types.SimpleNamespace(_initializing=True)
    for name in (module.__name__, saving.__name__):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with named_parts() as parts:
        assert not parts.has_news()
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(sys.modules, saving.__name__, saving)
        assert parts.has_news()
        parts.look()
        assert not hasattr(saving.save, "__wrapped__")  # another thread is at it
        saving.__spec__ = None
        assert parts.has_news()
        parts.look()
        parts.look()
        assert not parts.has_news()
        with torch.profiler.profile() as profile:
            assert next(EpochIterator()) == 5  # type: ignore[call-overload]
            assert saving.save() == "saved"
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["gpuprof.input"] == counts["gpuprof.checkpoint"] == 1
    assert is_loader_name("gpuprof.input")
    assert not hasattr(saving.save, "__wrapped__")


def test_a_module_is_met_when_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, after it is whole, and it looks as if nobody had waited for it."""
    (tmp_path / "late_one.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    met: list[int] = []
    take_back = when_imported("late_one", lambda: met.append(sys.modules["late_one"].value))
    import late_one  # type: ignore[import-not-found]

    assert met == [1]
    assert type(late_one.__spec__.loader).__module__ != "gpuprof.late_import"
    take_back()
    when_imported("late_one", lambda: met.append(2))
    assert met == [1, 2]
    del sys.modules["late_one"]


def test_a_failing_hook_is_not_the_import_s_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`import torch` must never fail because of gpuprof."""
    (tmp_path / "late_two.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    when_imported("late_two", lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    import late_two  # type: ignore[import-not-found]

    assert late_two.value == 1
    del sys.modules["late_two"]


def test_step_log_holds_every_step(tmp_path: Path) -> None:
    """Lines of successive steps, numbered; a segment says what it is."""
    import json

    log = StepLog(tmp_path, 3)
    for number in range(1200):
        log.add(1_000_000 + number * 1000, number)
    log.close()
    head, *lines = (tmp_path / "steps-rank00003-0000.jsonl").read_text().splitlines()
    assert json.loads(head) == {"format": "gpuprof-steps", "version": 1, "rank": 3}
    rows = [json.loads(line) for line in lines]
    assert [row["n"] for row in rows] == [0, 512, 1024]
    assert [length for row in rows for length in row["us"]] == list(range(1000, 2200))


# ---- NCCL ---------------------------------------------------------------------------------


@pytest.fixture
def with_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_capture, "is_possible", lambda: True)


@pytest.mark.usefixtures("with_driver")
def test_nccl_log_goes_into_the_run_and_the_environment_back(tmp_path: Path) -> None:
    """INFO, bounded subsystems, a file per process; nothing stays set."""
    environ = {"HOME": str(tmp_path), "OTHER": "1"}
    with nccl_capture.captured(tmp_path / "100%", environ) as (status, why):
        assert (status, why) == ("captured", "")
        assert environ["NCCL_DEBUG"] == "INFO"
        assert environ["NCCL_DEBUG_FILE"] == f"{tmp_path}/100%%/%h.%p.log"
        assert not {"TUNING", "COLL", "ALL"} & set(environ["NCCL_DEBUG_SUBSYS"].split(","))
        environ["NCCL_DEBUG"] = "WARN"  # the user has changed it meanwhile
    assert environ == {"HOME": str(tmp_path), "OTHER": "1", "NCCL_DEBUG": "WARN"}
    assert (tmp_path / "100%").is_dir()


@pytest.mark.usefixtures("with_driver")
@pytest.mark.parametrize("name", nccl_capture.USERS)
def test_what_the_user_set_is_left(tmp_path: Path, name: str) -> None:
    """Any of the user's own settings wins, and the reason is kept."""
    environ = {"HOME": str(tmp_path), name: "mine"}
    with nccl_capture.captured(tmp_path / "nccl", environ) as (status, why):
        assert status == "missed"
        assert name in why
        assert environ == {"HOME": str(tmp_path), name: "mine"}


@pytest.mark.usefixtures("with_driver")
def test_nccl_s_configuration_file_counts_as_the_user_s(tmp_path: Path) -> None:
    """~/.nccl.conf sets the same things; the environment would overrule it."""
    (tmp_path / ".nccl.conf").write_text("# mine\nNCCL_DEBUG=WARN\n")
    with nccl_capture.captured(tmp_path / "nccl", {"HOME": str(tmp_path)}) as (status, why):
        assert status == "missed"
        assert ".nccl.conf" in why


def test_fractions_only_where_they_are_right() -> None:
    """2.26 prints wrong fractions of a second."""
    name = "NCCL_DEBUG_TIMESTAMP_FORMAT"
    assert name not in nccl_capture.settings(Path("/x"))
    assert name not in nccl_capture.settings(Path("/x"), (2, 26, 5))
    assert name in nccl_capture.settings(Path("/x"), (2, 27, 3))


def test_without_a_gpu_nothing_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job on CPUs keeps its environment."""
    monkeypatch.setattr(nccl_capture, "is_possible", lambda: False)
    environ: dict[str, str] = {}
    with nccl_capture.captured(tmp_path / "nccl", environ) as (status, _):
        assert (status, environ) == ("not used", {})
    assert not (tmp_path / "nccl").exists()
