"""Deduplicate kernels that differ in names alone: a repeated layer's kernels are written and compiled once."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from optfuse.compiler.codegen.host_program import Step
from optfuse.compiler.codegen.kernel_source import KernelSource


def share_kernels(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps, where a kernel that repeats an earlier one calls the earlier one's function with its own buffers.

    A comment in the function's text lists the names of the kernels that call it.
    """
    first: dict[tuple[object, ...], str] = {}
    other_names: dict[str, list[str]] = {}
    functions = {step.name: step for step in steps if isinstance(step, KernelSource)}
    called: list[tuple[Step, str]] = []
    for step in steps:
        if not isinstance(step, KernelSource):
            called.append((step, ""))
            continue
        name = first.setdefault(likeness(step), step.name)
        if name != step.name:
            other_names.setdefault(name, []).append(step.name)
        called.append((step, name))
    shared = {name: _with_names(functions[name], other_names.get(name, ())) for name in first.values()}
    return tuple(
        replace(shared[name], pointers=step.pointers, written=step.written, label=step.label)
        if isinstance(step, KernelSource)
        else step
        for step, name in called
    )


def likeness(kernel: KernelSource) -> tuple[object, ...]:
    """A key that is equal for kernels that compute the same: the syntax tree with parameters and locals numbered."""
    types = tuple(kind for _, kind in kernel.signature)
    return (_numbered(kernel.source), types, kernel.config, kernel.interpret, kernel.grid, kernel.sizes, kernel.parts)


def _numbered(source: str) -> str:
    tree = ast.parse(source)
    local = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    local |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    local |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    numbers: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.name = numbers.setdefault(node.name, f"v{len(numbers)}")
        elif isinstance(node, ast.arg):
            node.arg = numbers.setdefault(node.arg, f"v{len(numbers)}")
        elif isinstance(node, ast.Name) and node.id in local:
            node.id = numbers.setdefault(node.id, f"v{len(numbers)}")
    return ast.dump(tree)


def _with_names(kernel: KernelSource, others: Sequence[str]) -> KernelSource:
    if not others:
        return kernel
    lines = ["# Runs again, on other buffers, as"]
    for name in others:
        if len(lines[-1]) + len(name) > 110:
            lines.append("#  ")
        lines[-1] += f" {name},"
    text = "\n".join([*lines[:-1], lines[-1].rstrip(",") + "."])
    return replace(kernel, source=f"{text}\n{kernel.source.strip()}\n")
