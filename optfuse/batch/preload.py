"""Modules that the process server imports before the first task. None of them may start a thread."""

from __future__ import annotations

import contextlib
from importlib import import_module

#: By name: pyright follows an import statement, and took a tenth of its time for these.
MODULES = (
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch.export",
    "optfuse.batch.work",
    "optfuse.solver.solve_blocks",
)
#: Those of extras.
EXTRAS = ("transformers.masking_utils", "transformers.modeling_utils")

for name in MODULES:
    import_module(name)
for name in EXTRAS:
    with contextlib.suppress(ImportError):
        import_module(name)
