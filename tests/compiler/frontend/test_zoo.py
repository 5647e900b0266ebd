"""Loading model files, and what they must say when they cannot be loaded."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

from optfuse.compiler.frontend.zoo import known_size, load_model_file
from optfuse.errors import InvalidOptionError, ModelFileError

MODELS = Path(__file__).parents[3] / "models"

#: The models of the speed measurements.
MEASURED = ["bert", "convnext", "gpt2", "llama", "mlp", "mobilenetv2", "resnet", "swin", "t5", "vit"]

MINIMAL = """
import torch

def model():
    return torch.nn.Linear(2, 3).train()

def inputs():
    return (torch.ones(1, 2),), {}
"""


def write(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_users_own_file(tmp_path: Path) -> None:
    file = load_model_file(write(tmp_path, MINIMAL))
    assert (file.name, file.dtype, file.trains) == ("mine", torch.float32, False)
    args, kwargs = file.inputs("small", train=True)
    model = file.model("full", torch.float64)
    assert not model.training
    assert model(*args, **kwargs).shape == (1, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "defines no model"),
        ("def model(): pass", "defines no inputs"),
        ("import no_such_module_anywhere", "does not load: ModuleNotFoundError"),
        ("def model(:", "does not load: SyntaxError"),
        ("raise SystemExit(3)", "does not load: SystemExit: 3"),
        ("raise ValueError('two\\nlines')", "does not load: ValueError: two lines"),
    ],
)
def test_files_that_lack_something(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as failure:
        load_model_file(write(tmp_path, text))
    assert "\n" not in str(failure.value)


def test_missing_file_and_wrong_ending(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        load_model_file(tmp_path / "absent.py")
    with pytest.raises(ModelFileError, match=r"\.py"):
        load_model_file(write(tmp_path, MINIMAL, "mine.txt"))
    with pytest.raises(ModelFileError, match="is a folder"):
        load_model_file(tmp_path)


def test_functions_that_return_something_else(tmp_path: Path) -> None:
    file = load_model_file(write(tmp_path, "def model(): return 3\ndef inputs(): return (), [1]"))
    with pytest.raises(ModelFileError, match="returned a int"):
        file.model()
    with pytest.raises(ModelFileError, match="must return"):
        file.inputs()


def test_sizes_that_a_file_does_not_know(tmp_path: Path) -> None:
    text = MINIMAL.replace("def model():", "def model(size):\n    {'full': 1, 'small': 2}[size]")
    file = load_model_file(write(tmp_path, text))
    file.model("small")
    with pytest.raises(ModelFileError, match="knows no size 'bench'"):
        file.model("bench")
    with pytest.raises(InvalidOptionError, match="full, bench, small"):
        known_size("large")


@pytest.mark.parametrize("name", MEASURED)
def test_the_measured_size_is_known_to_the_models_that_are_measured(name: str) -> None:
    module = load_model_file(MODELS / f"{name}.py").module
    assert set(module.SHAPES) == {"full", "bench", "small"}
    assert set(getattr(module, "CONFIGS", module.SHAPES)) == set(module.SHAPES)


def test_the_zoo_is_listed_and_of_one_form() -> None:
    files = sorted(MODELS.glob("*.py"))
    listed = re.findall(r"^\| `(\w+\.py)` \|", (MODELS / "README.md").read_text(), flags=re.MULTILINE)

    assert len(files) >= 40
    assert sorted(listed) == [path.name for path in files]
    for path in files:
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), path
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert {"model", "inputs"} <= defined, path


def test_functions_that_fail(tmp_path: Path) -> None:
    text = "def model(config): pass\ndef inputs(): raise SystemExit('no\\ndata')"
    file = load_model_file(write(tmp_path, text))
    with pytest.raises(ModelFileError, match=r"model\(\) fails: TypeError: .*'config'"):
        file.model()
    with pytest.raises(ModelFileError, match=r"inputs\(\) fails: SystemExit: no data"):
        file.inputs(train=True)
