"""Model files: Python files that define ``model`` and ``inputs``, as in ``models/`` and as users write their own."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

import torch

from optfuse.errors import InvalidOptionError, ModelFileError

Size = Literal["full", "bench", "small"]
Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A loaded model file.

    Args:
        name: The file's name without its ending.
        dtype: The dtype of the parameters (``DTYPE`` in the file; float32 if it says nothing).
        trains: Whether the file offers a training step (``TRAINS``; False if it says nothing).
    """

    path: Path
    name: str
    module: ModuleType
    dtype: torch.dtype
    trains: bool

    def model(self, size: Size = "full", dtype: torch.dtype | None = None) -> torch.nn.Module:
        """The model, with random weights, in evaluation mode."""
        model = self._call("model", size, dtype)
        if not isinstance(model, torch.nn.Module):
            raise ModelFileError(f"{self.path}: model() returned a {type(model).__name__}; return a torch.nn.Module")
        return model.eval()

    def inputs(self, size: Size = "full", dtype: torch.dtype | None = None, *, train: bool = False) -> Inputs:
        """Example (args, kwargs) for inference, or for a training step whose result has a loss."""
        name = "training_inputs" if train and hasattr(self.module, "training_inputs") else "inputs"
        match self._call(name, size, dtype):
            case (tuple() as args, Mapping() as kwargs):
                return args, kwargs
            case _:
                raise ModelFileError(f"{self.path}: {name}() must return (args, kwargs), a tuple and a dict")

    def _call(self, name: str, size: Size, dtype: torch.dtype | None) -> Any:
        """Call a function of the file with the arguments among ``size`` and ``dtype`` that it takes."""
        function: Callable[..., Any] = getattr(self.module, name)
        offered: dict[str, Any] = {"size": size} if dtype is None else {"size": size, "dtype": dtype}
        try:
            taken = inspect.signature(function).parameters
            return function(**{key: value for key, value in offered.items() if key in taken})
        except (Exception, SystemExit) as error:  # a user's function may fail in any way
            if isinstance(error, KeyError) and error.args == (size,):
                raise ModelFileError(f"{self.path}: {name}() knows no size {size!r}; choose another one") from error
            raise ModelFileError(f"{self.path}: {name}() fails: {_said(error)}") from error


def load_model_file(path: str | Path) -> ModelFile:
    """Run the Python file at ``path`` and check that it defines ``model()`` and ``inputs()``.

    Raises:
        ModelFileError: If there is no such file, it does not run, or it lacks one of the functions.
    """
    path = Path(path)
    if path.is_dir():
        raise ModelFileError(f"{path}: is a folder; give the path of a Python file that defines model() and inputs()")
    if not path.is_file():
        raise ModelFileError(f"{path}: no such file; give the path of a Python file that defines model() and inputs()")
    spec = importlib.util.spec_from_file_location(f"optfuse_model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ModelFileError(f"{path}: not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(spec.name)
    sys.modules[spec.name] = module  # torch.compile imports the module of a function by its name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a user's file may fail in any way
        sys.modules.pop(spec.name)
        if before is not None:
            sys.modules[spec.name] = before
        raise ModelFileError(f"{path} does not load: {_said(error)}") from error
    for function in ("model", "inputs"):
        if not callable(getattr(module, function, None)):
            raise ModelFileError(f"{path} defines no {function}(); see models/README.md for what a model file needs")
    return ModelFile(
        path=path,
        name=path.stem,
        module=module,
        dtype=getattr(module, "DTYPE", torch.float32),
        trains=bool(getattr(module, "TRAINS", False)),
    )


def known_size(size: str) -> Size:
    """The size of that name.

    Raises:
        InvalidOptionError: An unknown size.
    """
    for known in get_args(Size):
        if size == known:
            return known
    raise InvalidOptionError(f"size must be one of {', '.join(get_args(Size))}, not {size!r}")


def _said(error: BaseException) -> str:
    """An exception of the file's own code, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
