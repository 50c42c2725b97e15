"""What is installed is what is in the tree: the wheel, a checkout, and what an import costs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "gpuprof": ROOT / "gpuprof",
    "gpuprof/collectors": ROOT / "collectors",
    "gpuprof/analyzers": ROOT / "analyzers",
    "gpuprof/reports": ROOT / "reports",
    "gpuprof/workloads": ROOT / "fixtures" / "workloads",
}
"""Where each folder of the wheel lies in the tree."""

HEAVY = ("torch", "pandas", "plotly", "numpy", "rich", "jinja2", "click", "pynvml", "nvitop")
"""What `import gpuprof` must not bring into a training process."""


def run_python(*arguments: str, cwd: Path, python: Path = Path(sys.executable)) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV_"))}
    done = subprocess.run(
        [python, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the tracked tree, built by its own build backend without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("this is no git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        if name.startswith("tests/") or not os.path.lexists(ROOT / name):
            continue
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to((ROOT / name).readlink())
        else:
            target.write_bytes((ROOT / name).read_bytes())
    pytest.importorskip("setuptools", minversion="77")
    pytest.importorskip("setuptools_scm")
    code = "from setuptools import build_meta as b; print(b.build_wheel('..'))"
    name = run_python("-c", code, cwd=source).splitlines()[-1]
    return folder / name


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment's Python with the wheel in it, which borrows the dependencies of this one
    (but not gpuprof itself: what `site-packages` of ours says of it is an editable link)."""
    folder = tmp_path_factory.mktemp("environment")
    run_python("-m", "venv", "--without-pip", str(folder), cwd=folder)
    python = folder / "bin" / "python"
    site = Path(
        run_python(
            "-c",
            "import sysconfig; print(sysconfig.get_path('purelib'))",
            cwd=folder,
            python=python,
        ).strip()
    )
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    borrowed = Path(pytest.__file__).resolve().parent.parent
    (site / "borrowed.pth").write_text(f"{borrowed}\n")  # read as a path only, its .pth are not
    return python


def test_wheel_holds_every_module_of_the_tree_and_nothing_else(wheel: Path) -> None:
    """A folder that pyproject does not list would be missing without a word."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    wanted = set()
    for inside, outside in FOLDERS.items():
        prefix = outside.relative_to(ROOT).as_posix() + "/"
        wanted |= {
            f"{inside}/{name.removeprefix(prefix)}"
            for name in tracked
            if name.startswith(prefix) and not (ROOT / name).is_symlink() and (ROOT / name).exists()
        }
    shipped = {name for name in names if not name.partition("/")[0].endswith(".dist-info")}
    assert shipped == wanted


def test_wheel_has_one_top_level_package_and_no_link(wheel: Path) -> None:
    """A bare `collectors` or `reports` would shadow the user's own modules."""
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
        links = [i.filename for i in archive.infolist() if (i.external_attr >> 28) == 0o12]
    assert {top for top in tops if not top.endswith(".dist-info")} == {"gpuprof"}
    assert links == []


def test_installed_wheel_imports_by_its_names(installed: Path, tmp_path: Path) -> None:
    """Each sub-package is found, in the environment and not in this checkout."""
    code = (
        "import gpuprof, gpuprof.collectors, gpuprof.analyzers, gpuprof.analyzers.causes,"
        " gpuprof.reports, gpuprof.readers, gpuprof.workloads; print(gpuprof.__file__)"
    )
    where = run_python("-c", code, cwd=tmp_path, python=installed).strip()
    assert where.startswith(str(installed.parent.parent))


@pytest.mark.parametrize("name", ["collectors", "analyzers", "reports", "workloads", "fixtures"])
def test_bare_names_are_not_importable(installed: Path, tmp_path: Path, name: str) -> None:
    """Neither from the wheel nor from the editable install of this environment."""
    code = f"import importlib.util as u; print(u.find_spec({name!r}))"
    assert run_python("-c", code, cwd=tmp_path, python=installed).strip() == "None"
    assert run_python("-c", code, cwd=tmp_path).strip() == "None"


def test_user_modules_of_the_same_names_stay_the_users(installed: Path, tmp_path: Path) -> None:
    """The user's collectors.py beside the script wins over nothing of ours."""
    (tmp_path / "collectors.py").write_text("mine = True\n")
    code = "import gpuprof.collectors, collectors; print(collectors.mine)"
    assert run_python("-c", code, cwd=tmp_path, python=installed).strip() == "True"


def test_import_brings_nothing_heavy(tmp_path: Path) -> None:
    """`import gpuprof` happens inside the user's training process."""
    code = f"import sys, gpuprof; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert run_python("-c", code, cwd=tmp_path).strip() == "[]"


def test_collectors_import_without_torch(tmp_path: Path) -> None:
    """A sampler or `doctor` runs where torch is not installed."""
    code = (
        "import importlib, pkgutil, sys\n"
        "sys.modules['torch'] = None\n"
        "import gpuprof.collectors as c\n"
        "names = [m.name for m in pkgutil.walk_packages(c.__path__, c.__name__ + '.')]\n"
        "[importlib.import_module(n) for n in names if not n.endswith('__main__')]\n"
        "print(len(names) > 0, 'pandas' in sys.modules, 'plotly' in sys.modules)\n"
    )
    assert run_python("-c", code, cwd=tmp_path).strip() == "True False False"
