"""Start hook of `gpuprof run`: Python imports this in every process of the job, before the script.

It waits for torch and does nothing else; a process that never imports torch never notices. Then it
makes room for the `sitecustomize` that would have been imported without it.
"""

import sys


def _stand_aside() -> None:
    """Takes this folder off the path, so that nothing in the job finds it."""
    import os

    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != own]


def _load(name: str, folder: str, file: str) -> None:
    """Imports a package from its folder without putting it on the path."""
    import importlib.util
    import os

    spec = importlib.util.spec_from_file_location(
        name, os.path.join(folder, file), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise ImportError(file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _hook() -> None:
    import os

    folder = os.environ.get("GPUPROF_RUN_FOLDER")
    if not folder:
        return
    own = os.path.dirname(os.path.abspath(__file__))
    try:
        try:
            import gpuprof.late_import
        except ImportError:
            sys.modules.pop("gpuprof", None)
            _load("gpuprof", os.path.dirname(own), "__init__.py")
            import gpuprof.late_import
        gpuprof.late_import.when_imported("torch", _arm)
    except Exception as error:
        _tell(folder, error)


def _arm() -> None:
    from gpuprof.child import arm

    arm()


def _tell(folder: str, error: Exception) -> None:
    """Leaves a word for the report; the job's own output stays its own."""
    import os

    try:
        with open(os.path.join(folder, "unhooked.log"), "a", encoding="utf-8") as file:
            file.write(
                "%s (pid %d): %s: %s\n" % (sys.executable, os.getpid(), type(error).__name__, error)
            )
    except OSError:
        pass


def _chain() -> None:
    """Runs the sitecustomize that this one stands in front of, under its own name."""
    import importlib

    this = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if this is not None:
            sys.modules["sitecustomize"] = this


_stand_aside()
_hook()
_chain()
