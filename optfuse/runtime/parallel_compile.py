"""Compile the kernels of a module in parallel, before its first launches would compile them one after another."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from optfuse.compiler.analysis.op_work import ITEM_BYTES
from optfuse.compiler.codegen.triton_expressions import pointer_type

#: Passes and the assembler run without Python's lock, Triton's frontend does not: more threads are slower.
THREADS = 4


def compile_in_parallel(table: dict[str, dict[str, Any]]) -> None:
    """Compile every kernel of a module's KERNELS for the current GPU; its launches then find them.

    Triton's own cache on disk is used as it is by a launch. A kernel that does not compile says so when it is launched.
    """
    import triton
    from triton.runtime.jit import MockTensor

    dtypes = {pointer_type(name): getattr(torch, name) for name in ITEM_BYTES}
    threads = max(1, min(len(table), os.cpu_count() or 1, THREADS))
    with ThreadPoolExecutor(threads) as pool, triton.AsyncCompileMode(pool, ignore_errors=True):
        for row in table.values():
            pointers = [MockTensor(dtypes[kind]) for kind in row["signature"].values() if kind in dtypes]
            row["function"].warmup(*pointers, grid=(1,), **row["constants"], **row["options"])
