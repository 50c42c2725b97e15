"""The page's template as Python code, kept as Python keeps its own: beside the sources.

Compiling the template takes a tenth of the CPU time of analyzing a small trace. What it compiles to
is written where Python writes bytecode (`__pycache__`, or `sys.pycache_prefix`), under the same
conditions, and is trusted as much. It is used only where it was made from the very same sources.
"""

from __future__ import annotations

import contextlib
import hashlib
import marshal
import os
import sys
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = Path(__file__).parent
FOLDED = ("page.py", "text.py", "template_code.py")
"""Sources that what is compiled depends on besides the template: jinja folds constants."""


def compiled(environment: Environment, template: str) -> CodeType:
    """The code of a template, compiled with the options of the environment."""
    path = _path()
    key = _key(template)
    if path is not None:
        with contextlib.suppress(OSError, ValueError, EOFError, TypeError):
            kept = path.read_bytes()
            if kept.startswith(key):
                code = marshal.loads(kept[len(key) :])
                if isinstance(code, CodeType):
                    return code
    code = environment.compile(template, filename="report.html.j2")
    if path is not None and not sys.dont_write_bytecode:
        _keep(path, key + marshal.dumps(code))
    return code


def _path() -> Path | None:
    try:
        return Path(cache_from_source(str(HERE / "report_template.py")))
    except NotImplementedError:  # this Python keeps no bytecode
        return None


def _key(template: str) -> bytes:
    """Names all that the code was made from."""
    from jinja2 import __version__

    digest = hashlib.sha256(f"{__version__}\0{template}".encode("utf-8", "surrogatepass"))
    for name in FOLDED:
        with contextlib.suppress(OSError):
            digest.update((HERE / name).read_bytes())
    return MAGIC_NUMBER + digest.digest()


def _keep(path: Path, data: bytes) -> None:
    """Writes the file in one piece, or not at all."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            new.write_bytes(data)
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
