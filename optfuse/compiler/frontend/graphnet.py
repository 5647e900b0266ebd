"""Samples of GraphNet (github.com/PaddlePaddle/GraphNet) as models: graphs of real models, as torch.compile saw them.

A sample is a folder with ``model.py``, a class whose ``forward`` takes every tensor by name, and ``weight_meta.py`` and
``input_meta.py``, which say shape, dtype and statistics of each. The latter are read and not run. ``model.py`` is run,
as any model file is: give only samples that you trust. Tensors that were on a GPU are made on the CPU. What was a
number of the module's own (an epsilon, how many tokens are prefixed) is that number, though torch.compile made a tensor
or a symbol of it.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from optfuse.compiler.frontend.zoo import Inputs, ModelFile
from optfuse.errors import ModelFileError

#: Values of a module's own state are named so.
_STATE = "L_self_"
_GPU = re.compile(r"^cuda(:\d+)?$")


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """What a sample says of one tensor. ``data``: its values, if it is small."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    mean: float = 0.0
    std: float = 1.0
    data: tuple[float, ...] | None = None
    min_val: float | None = None
    max_val: float | None = None

    def tensor(self, generator: torch.Generator) -> torch.Tensor:
        """A tensor like it, with its values or random ones."""
        if self.data is not None:
            return torch.tensor(self.data, dtype=self.dtype).reshape(self.shape)
        if self.dtype is torch.bool:
            return torch.rand(self.shape, generator=generator) > 0.5
        if not self.dtype.is_floating_point:
            low = int(self.min_val or 0)
            high = low if self.max_val is None else int(self.max_val)
            return torch.randint(low, high + 1, self.shape, generator=generator, dtype=self.dtype)
        drawn = torch.randn(self.shape, generator=generator) * self.std + self.mean
        return drawn.clamp(min=self.min_val, max=self.max_val).to(self.dtype) if self._bounded else drawn.to(self.dtype)

    @property
    def _bounded(self) -> bool:
        return self.min_val is not None or self.max_val is not None


class Sample(torch.nn.Module):
    """A sample's graph with its state: parameters, buffers, numbers. Called with its inputs, in the graph's order."""

    def __init__(
        self,
        graph: torch.nn.Module,
        names: tuple[str, ...],
        state: Mapping[str, torch.Tensor],
        numbers: Mapping[str, int | float],
    ) -> None:
        super().__init__()
        self.body = graph  # not "graph": torch.export would look for the body's constants in its own
        self._names = names
        self._state = frozenset(state)
        self._numbers = dict(numbers)
        for name, value in state.items():
            if isinstance(value, torch.nn.Parameter):
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value)

    def forward(self, *inputs: Any) -> Any:
        """Call the graph with state and inputs in their places."""
        rest = iter(inputs)
        return self.body(*(self._own(name) if self._owns(name) else next(rest) for name in self._names))

    def _owns(self, name: str) -> bool:
        return name in self._state or name in self._numbers

    def _own(self, name: str) -> torch.Tensor | int | float:
        return self._numbers[name] if name in self._numbers else getattr(self, name)


def load_sample(folder: Path) -> ModelFile:
    """A sample as a model file; it has one size and one dtype, and trains if it has parameters.

    Raises:
        ModelFileError: If a file is missing or malformed, or ``model.py`` does not run.
    """
    metas = {
        meta.name: meta
        for name in ("input_meta.py", "weight_meta.py")
        if (folder / name).is_file()
        for meta in read_metas(folder / name)
    }
    tree = _parse(folder / "model.py")
    numbers = {
        name: number for name in _numbers(tree) if name in metas and (number := _number(metas[name])) is not None
    }
    graph_class = _graph_class(folder / "model.py", tree, frozenset(numbers))
    parameters = list(inspect.signature(graph_class.forward).parameters.values())[1:]
    missing = [p.name for p in parameters if p.name not in metas]
    if missing:
        raise ModelFileError(f"{folder / 'weight_meta.py'}: says nothing of {missing[0]}, which model.py takes")
    names = tuple(p.name for p in parameters)
    trained = {p.name for p in parameters if "Parameter" in str(p.annotation)}
    floats = {metas[name].dtype for name in trained if metas[name].dtype.is_floating_point}
    state = tuple(name for name in names if name.startswith(_STATE) and name not in numbers)
    given = tuple(metas[name] for name in names if name not in state and name not in numbers)

    def model() -> torch.nn.Module:
        generator = torch.Generator().manual_seed(0)
        values = {name: metas[name].tensor(generator) for name in state}
        learned = {n: torch.nn.Parameter(v) for n, v in values.items() if n in trained and v.is_floating_point()}
        return Sample(graph_class(), names, {**values, **learned}, numbers)

    def inputs() -> Inputs:
        generator = torch.Generator().manual_seed(1)
        return tuple(_size(meta) if _is_size(meta) else meta.tensor(generator) for meta in given), {}

    module = ModuleType(f"graphnet_{folder.name}")
    module.model, module.inputs = model, inputs
    dtype = max(floats, key=lambda item: item.itemsize, default=torch.float32)
    return ModelFile(folder / "model.py", folder.name, module, dtype, trains=bool(trained))


def read_metas(path: Path) -> tuple[TensorMeta, ...]:
    """The tensors that a meta file describes, a class each. It is parsed, never run.

    Raises:
        ModelFileError: If it cannot be read, or a class has something else than plain values.
    """
    return tuple(
        _meta(path, {target.id: _plain(path, node.value) for node, target in _assignments(found)})
        for found in _parse(path).body
        if isinstance(found, ast.ClassDef)
    )


def _assignments(found: ast.ClassDef) -> list[tuple[ast.Assign, ast.Name]]:
    return [
        (node, node.targets[0])
        for node in found.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    ]


def _meta(path: Path, values: Mapping[str, Any]) -> TensorMeta:
    try:
        dtype = getattr(torch, str(values["dtype"]).removeprefix("torch."))
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{values['dtype']!r} is no dtype")
        data = values.get("data")
        return TensorMeta(
            name=str(values["name"]),
            shape=tuple(int(size) for size in values["shape"]),
            dtype=dtype,
            mean=_finite(values.get("mean"), 0.0),
            std=_finite(values.get("std"), 1.0),
            data=None if data is None else tuple(data),
            min_val=values.get("min_val"),
            max_val=values.get("max_val"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(f"{path}: malformed: {type(error).__name__}: {error}") from error


def _finite(value: Any, default: float) -> float:
    return float(value) if value is not None and abs(float(value)) < float("inf") else default


def _plain(path: Path, node: ast.expr) -> Any:
    """A literal's value; beside Python's own literals, ``float("inf")`` and the like, in lists too."""
    match node:
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str() as text)], keywords=[]):
            return float(text)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_plain(path, item) for item in items]
        case _:
            try:
                return ast.literal_eval(node)
            except ValueError as error:
                raise ModelFileError(f"{path}:{node.lineno}: a meta file holds plain values only") from error


def _is_size(meta: TensorMeta) -> bool:
    """Whether an input is a size that was symbolic (``s0``), and is passed as a number."""
    return re.fullmatch(r"s\d+", meta.name) is not None and _number(meta) is not None


def _size(meta: TensorMeta) -> int:
    assert meta.data is not None, "a size has a value"
    return int(meta.data[0])


def _number(meta: TensorMeta) -> int | float | None:
    """The number that a tensor without dimensions holds, if it is said: as its data, or as a mean without deviation."""
    if meta.shape or not (meta.data or meta.std == 0):
        return None
    value = meta.data[0] if meta.data else meta.mean
    return float(value) if meta.dtype.is_floating_point else int(value)


def _numbers(tree: ast.Module) -> frozenset[str]:
    """Arguments that are numbers of the module's own: symbols but for sizes, and tensors whose ``item()`` is asked."""
    symbols = {
        found.arg
        for found in ast.walk(tree)
        if isinstance(found, ast.arg)
        and found.annotation is not None
        and "SymInt" in ast.unparse(found.annotation)
        and not re.fullmatch(r"s\d+", found.arg)
    }
    return frozenset(symbols | {_root(asked, _renamed(tree)) for asked in map(_asked, ast.walk(tree)) if asked})


def _renamed(tree: ast.Module) -> dict[str, str]:
    """What names stand for that are only other names of something."""
    return {
        target.id: node.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _root(name: str, renamed: Mapping[str, str]) -> str:
    seen: set[str] = set()
    while name in renamed and name not in seen:
        seen.add(name)
        name = renamed[name]
    return name


def _asked(node: ast.AST) -> str:
    """The name whose ``item()`` a node calls; "" for any other node."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="item"), args=[]):
            return name
        case _:
            return ""


class _Here(ast.NodeTransformer):
    """Replace GPU devices by the CPU, in strings and calls of ``device``, and a number's ``item()`` by the number."""

    def __init__(self, numbers: frozenset[str], renamed: Mapping[str, str]) -> None:
        self._numbers = numbers
        self._renamed = renamed

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str) and _GPU.match(node.value):
            return ast.copy_location(ast.Constant("cpu"), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        asked = _asked(node)
        if asked and _root(asked, self._renamed) in self._numbers:
            return ast.copy_location(ast.Name(asked, ast.Load()), node)
        if isinstance(node.func, ast.Name) and node.func.id == "device":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "index"]
        return self.generic_visit(node)


def _graph_class(path: Path, tree: ast.Module, numbers: frozenset[str]) -> type[torch.nn.Module]:
    module = ModuleType("graphnet_sample")
    tree = ast.fix_missing_locations(_Here(numbers, _renamed(tree)).visit(tree))
    try:
        exec(compile(tree, str(path), "exec"), module.__dict__)
    except Exception as error:  # a sample's code may fail in any way
        raise ModelFileError(f"{path} does not load: {type(error).__name__}: {error}") from error
    found = getattr(module, "GraphModule", None)
    if not (isinstance(found, type) and issubclass(found, torch.nn.Module)):
        raise ModelFileError(f"{path} defines no class GraphModule; a GraphNet sample of torch does")
    return found


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (SyntaxError, ValueError) as error:
        raise ModelFileError(f"{path} does not load: {type(error).__name__}: {error}") from error
