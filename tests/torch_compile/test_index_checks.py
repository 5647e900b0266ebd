"""An index outside of its dimension is an error, as in eager execution, and known indices cost no check."""

import pytest
import torch
import torch.nn.functional as F

from optfuse.runtime.environment import mode
from optfuse.torch_compile.backend import backend

pytestmark = pytest.mark.skipif(mode() == "compile", reason="an assertion that fails ends the use of a GPU")

X = torch.arange(48.0).reshape(6, 8)
ROWS = torch.tensor([0, 1, 1])


def updated(x, rows):
    x = x * 1
    x[rows] = 3.0
    return x + 1


READS = {
    "embedding": (lambda x, rows: torch.nn.functional.embedding(rows, x) * 2, 6),
    "index": (lambda x, rows: x[:, rows] * 2, 8),
    "index_from_the_end": (lambda x, rows: x[rows - 6] * 2, 12),
    "index_of_a_view": (lambda x, rows: x.view(6, 4, 2)[:, :, rows] + 1, 2),
    "index_of_a_slice": (lambda x, rows: x[:, :6][:, rows] * 2, 6),
    "gather": (lambda x, rows: x[:3].gather(1, rows[:, None]) * 2, 8),
    "computed_and_padded": (lambda x, rows: torch.nn.functional.pad(x[rows + 0], (1, 1, 1, 1)) * 2, 6),
}
WRITES = {
    "index_put": (updated, 6),
    "index_add": (lambda x, rows: torch.zeros(6, 8).index_add(0, rows, x[:3]) * 2, 6),
    "scatter": (lambda x, rows: torch.zeros(3, 8).scatter(1, rows[:, None], x[:3]) * 2, 8),
    "scatter_and_pad": (lambda x, rows: F.pad(x[:3].scatter(1, rows[:, None], 7.0), (1, 1, 1, 1)) * 2, 8),
    "scatter_add": (lambda x, rows: torch.zeros(3, 8).scatter_add(1, rows[:, None], x[:3]) * 2, 8),
}


@pytest.mark.spread(4)
@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_an_index_out_of_bounds_is_an_error(name):
    function, end = (READS | WRITES)[name]
    compiled = torch.compile(function, backend=backend)
    assert torch.equal(compiled(X, ROWS), function(X, ROWS))
    outside = torch.tensor([0, 1, end])
    with pytest.raises((IndexError, RuntimeError)):
        function(X, outside)
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(X, outside)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.one_hot(x, 6) * 2,
        lambda x: (F.one_hot(x, 6).float() @ X).relu(),
    ],
)
def test_what_a_model_asserts_is_asserted(function):
    compiled = torch.compile(function, backend=backend)
    assert torch.equal(compiled(ROWS), function(ROWS))
    with pytest.raises(RuntimeError):
        function(ROWS + 5)
    with pytest.raises(RuntimeError):
        compiled(ROWS + 5)


def test_an_index_out_of_bounds_is_the_same_error_in_training():
    """Kernels of a forward graph that share a launch are functions that its kernel calls."""
    table = torch.nn.Embedding(4, 2)
    compiled = torch.compile(lambda rows: table(rows) * 2, backend=backend)
    assert torch.equal(compiled(ROWS[:2] % 4), table(ROWS[:2] % 4) * 2)
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(torch.tensor([1, 9]))


def test_an_index_is_checked_only_where_it_is_read():
    """Around the padding there is no row, and nothing to be inside of."""

    def function(x, rows):
        return F.pad(x[:3].scatter(1, rows[:, None] - 1, 7.0), (1, 1, 1, 1)) * 2

    compiled = torch.compile(function, backend=backend)
    assert torch.equal(compiled(X, ROWS + 1), function(X, ROWS + 1))
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(X, ROWS)


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[5 - torch.arange(6)] * 2,
        lambda x: x[:, torch.arange(16) % 8] * 2,
        lambda x: x[(torch.arange(9) - 1).clamp(0, 5)] * 2,
        lambda x: torch.nn.functional.interpolate(x[None, None], scale_factor=2, mode="nearest") * 2,
    ],
)
def test_known_indices_are_not_checked(function):
    record = []

    def watched(graph, inputs):
        record.append(backend(graph, inputs))
        return record[-1]

    assert torch.equal(torch.compile(function, backend=watched)(X), function(X))
    (schedule,) = record[0].record.schedules
    assert "device_assert" not in schedule.source
