"""Compile the kernels of an emitted module for a GPU that need not be there, and print what they use as JSON lines.

A program of its own, for a Python that has torch and triton and perhaps nothing of optfuse: run it by its path.
Usage: ``python aot_worker.py MODULE.py ARCH SHARD SHARDS CACHE_DIR``: kernels number SHARD, SHARD + SHARDS, ...
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

VERSION = 1


def main(arguments: list[str]) -> None:
    """Print one JSON object a kernel, in the order of the module's table."""
    path, arch, shard, shards, cache = arguments
    os.environ.pop("TRITON_INTERPRET", None)
    table = _load(Path(path)).KERNELS
    functions = [node for node in ast.parse(Path(path).read_text()).body if isinstance(node, ast.FunctionDef)]
    kernels = {row["function"].__name__ for row in table.values()}
    shared = [ast.dump(node) for node in functions if node.name not in kernels and node.decorator_list]
    syntax = {node.name: _anonymous(node) for node in functions if node.name in kernels}
    for name in list(table)[int(shard) :: int(shards)]:
        key = _key(table[name], syntax[table[name]["function"].__name__], shared, int(arch))
        print(json.dumps({"name": name} | _report(table[name], int(arch), Path(cache) / f"{key}.json")), flush=True)


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("optfuse_aot_module", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _report(row: dict[str, Any], arch: int, entry: Path) -> dict[str, Any]:
    if entry.is_file():
        return {**json.loads(entry.read_text()), "cached": True}
    started = time.perf_counter()
    try:
        report = _compile(row, arch)
    except Exception as error:
        lines = [line for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
        return {"error": " | ".join(lines[:3] + lines[-2:] if len(lines) > 5 else lines), "cached": False}
    report["seconds"] = time.perf_counter() - started
    handle, temporary = tempfile.mkstemp(dir=entry.parent)
    with os.fdopen(handle, "w") as file:
        json.dump(report, file)
    Path(temporary).replace(entry)
    return {**report, "cached": False}


def _key(row: dict[str, Any], syntax: str, shared: list[str], arch: int) -> str:
    """What the machine code depends on: the kernel without names and comments, the shared functions, the options."""
    import triton

    parts = [
        *(VERSION, triton.__version__, arch, shared, syntax),
        *(list(row["signature"].values()), list(row["constants"].values()), sorted(row["options"].items())),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _anonymous(function: ast.FunctionDef) -> str:
    """The function's syntax with its own and its variables' names replaced by numbers: layers of a model differ there.

    The order of constants in the table is that of the function's parameters.
    """
    function.name = "kernel"
    numbers: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            node.arg = numbers.setdefault(node.arg, f"v{len(numbers)}")
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            numbers.setdefault(node.id, f"v{len(numbers)}")
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            node.id = numbers.get(node.id, node.id)
    return ast.dump(function)


def _compile(row: dict[str, Any], arch: int) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = row["function"]
    divisible = [["tt.divisibility", 16]]  # torch aligns what it allocates
    source = ASTSource(
        fn=function,
        signature=dict(row["signature"]),
        constexprs=dict(row["constants"]),
        attrs={
            (function.arg_names.index(name),): divisible for name, kind in row["signature"].items() if kind[0] == "*"
        },
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=dict(row["options"]))
    usage = _usage(compiled.asm["cubin"])
    spills = _spills(compiled.asm["ptx"], arch) if usage["STACK"] or usage["LOCAL"] else 0
    return {
        "registers": usage["REG"],
        "stack": usage["STACK"],
        "spills": spills,
        "shared": int(compiled.metadata.shared),
    }


def _tool(name: str) -> str:
    import triton

    return str(Path(triton.__file__ or "").parent / "backends" / "nvidia" / "bin" / name)


def _usage(cubin: bytes) -> dict[str, int]:
    """Registers a thread, and bytes of stack and local memory, from the machine code itself."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [_tool("cuobjdump"), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
    if len(found) < 3:
        raise RuntimeError(f"cuobjdump says nothing of registers: {text.strip()}")
    return found


def _spills(ptx: str, arch: int) -> int:
    """Bytes of spill stores and loads, which only the assembler tells."""
    from triton.backends.nvidia.compiler import get_ptxas

    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        suffix = "a" if arch >= 90 else ""
        command = [get_ptxas(arch).path, "-v", f"--gpu-name=sm_{arch}{suffix}", file.name, "-o", os.devnull]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.findall(r"(\d+) bytes spill (?:stores|loads)", done.stdout + done.stderr)
    if not found:
        raise RuntimeError("ptxas says nothing of spills")
    return sum(map(int, found))


if __name__ == "__main__":
    main(sys.argv[1:])
