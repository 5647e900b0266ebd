"""From source text to a Python module. Triton reads its functions from a real file, so the text is written to one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from optfuse.cache import store, store_module
from optfuse.runtime.environment import prepare
from optfuse.runtime.parallel_compile import compile_in_parallel


def load_source(source: str, folder: Path | None = None) -> ModuleType:
    """Import an emitted module, ready to launch its kernels in this process. The same text is imported once.

    Args:
        source: The text of the module. It is executed: pass only what this process has generated.
        folder: Where the file is kept; by default in the user's cache folder.

    Raises:
        OutputError: If the file cannot be written.
    """
    where = prepare()
    path = store_module(source) if folder is None else store(source, folder)
    name = f"optfuse_module_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a .py file has a spec"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        if where == "compile":
            compile_in_parallel(getattr(module, "KERNELS", {}))
    except BaseException:
        del sys.modules[name]
        raise
    return module
