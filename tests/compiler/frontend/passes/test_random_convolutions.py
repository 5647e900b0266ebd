"""Random programs of convolutions, norms and activations, some in place, by torch.compile without gradients."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from optfuse.compiler.frontend import Captured
from optfuse.compiler.frontend.aot_autograd.aot import as_traced
from optfuse.compiler.frontend.dynamo_backend import make_backend

Function = Callable[[Mapping[str, Tensor], Tensor], tuple[Tensor, ...]]

#: Steps on a value ``a`` and another one ``b``: what they write into has other readers now and then.
STEPS = (
    "F.conv2d({a}, p['w{n}'], None, 1, 1)", "F.batch_norm({a}, p['m'], p['s'], p['g'], p['b'], False)",
    "torch.relu({a})", "F.relu({a}, inplace={yes})", "{a} + {b}", "{a} * 0.5", "{a}[:, 0:8]",
    "torch.cat([{a}[:, :4], {b}[:, 4:]], 1)", "{a}.view({a}.shape)",
    "{a}.relu_()", "F.silu({a}, inplace=True)", "F.hardswish({a}, {yes})", "{a}.add_({b})",
)  # fmt: skip
ADDED = ("{t} = {t}", "{t} += {b}", "{t} = {b} + {t}", "{b}.mul_(0.9)")
RELUS = ("F.relu({t}, inplace=True)", "{t}.relu_()", "torch.relu({t})", "F.relu({t})")


def program(draw: random.Random) -> str:
    """The text of a function ``f`` of parameters and images; half of its steps are what libraries fuse."""
    lines, names = ["def f(p, x):", "    v0 = x * 1"], ["v0"]
    for k in range(1, draw.randint(5, 12)):
        known: dict[str, Any] = {"a": draw.choice(names[-4:]), "b": draw.choice(names), "t": f"t{k}"}
        known |= {"n": draw.randint(0, 2), "yes": draw.random() < 0.5}
        if draw.random() < 0.5:
            bias = draw.choice(["None", "p['b']"])
            lines.append("    {t} = F.conv2d({a}, p['w{n}'], {bias}, 1, 1)".format(**known, bias=bias))
            if draw.random() < 0.7:
                lines.append("    {t} = F.batch_norm({t}, p['m'], p['s'], p['g'], p['b'], False)".format(**known))
            lines.append("    " + draw.choices(ADDED, [10, 5, 4, 1])[0].format(**known))
            lines.append(f"    v{k} = " + draw.choice(RELUS).format(**known))
        else:
            lines.append(f"    v{k} = " + draw.choice(STEPS).format(**known))
        names.append(f"v{k}")
    return "\n".join([*lines, f"    return {', '.join(draw.sample(names, min(len(names), draw.randint(1, 3))))},"])


def judged(seed: int) -> int:
    """Hold a program's results against eager execution's and float64. Returns how many convolutions were fused."""
    names: dict[str, Any] = {"F": F, "torch": torch}
    text = program(random.Random(seed))
    exec(text, names)
    function: Function = names["f"]
    made = torch.Generator().manual_seed(seed)
    parameters = {f"w{n}": 0.15 * torch.randn(8, 8, 3, 3, generator=made) for n in range(3)}
    parameters |= {name: 0.5 + torch.rand(8, generator=made) for name in "mgsb"}
    half = {name: value.bfloat16() for name, value in parameters.items()}
    x = torch.randn(2, 8, 5, 6, generator=made).bfloat16()
    found: list[Captured] = []

    def run(captured: Captured) -> Callable[..., Any]:
        found.append(captured)
        return as_traced(captured)

    torch.compiler.reset()
    with torch.no_grad():
        eager = function(half, x.clone())
        ours = torch.compile(function, backend=make_backend(run), fullgraph=True)(half, x.clone())
        exact = function({name: value.double() for name, value in half.items()}, x.double())
    for one, other, right in zip(ours, eager, exact, strict=True):
        assert one.stride() == other.stride(), text
        errors = [float((value.double() - right).norm() / right.norm().clamp_min(1e-9)) for value in (one, other)]
        assert errors[0] <= max(2.5 * errors[1], 0.02), text
    fused = torch.ops.optfuse.convolution_relu.default
    return sum(len(captured.graph.graph.find_nodes(op="call_function", target=fused)) for captured in found)


def test_some_programs() -> None:
    assert sum(judged(seed) for seed in range(4)) > 0


@pytest.mark.slow
def test_many_programs() -> None:
    assert sum(judged(seed) for seed in range(4, 404)) > 100
