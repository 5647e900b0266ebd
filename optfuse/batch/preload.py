"""Modules that the process server imports before the first task. None of them may start a thread."""

from __future__ import annotations

import contextlib

import torch._dynamo
import torch._functorch.aot_autograd
import torch.export  # noqa: F401

import optfuse.batch.work
import optfuse.solver.solve_blocks  # noqa: F401

with contextlib.suppress(ImportError):  # an extra
    import transformers.masking_utils
    import transformers.modeling_utils  # noqa: F401
