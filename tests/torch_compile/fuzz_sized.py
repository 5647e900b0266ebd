"""Random programs over inputs whose sizes change: text that eager runs, forward and backward, at all of the sizes.

A program is drawn as ``fuzzed`` draws one, at several sizes side by side; statements of its own compute with sizes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from tests.torch_compile.fuzz_inputs import DTYPES, FLOATS, Argument, Memory, extent, strides
from tests.torch_compile.fuzz_judging import ran
from tests.torch_compile.fuzz_statements import State, dim, floating, operand, scalar
from tests.torch_compile.fuzzed import STATEMENTS, Program, Statement, grown_values, statement

Sizes = dict[str, int]
#: Shapes of inputs, by the names of the two sizes that change.
SHAPES: list[tuple[str | int, ...]] = [
    ("a",),
    ("a", "b"),
    ("a", "b"),
    ("b", "a"),
    ("a", 4),
    (3, "b"),
    ("a", "b", 3),
    (2, "a", 3),
    ("b", 2, 4),
    ("a", 1),
    ("a", 1, "b"),
    ("a", "a"),
    ("b",),
]
FIXED: list[tuple[str | int, ...]] = [(), (1,), (4,), (3,)]


@dataclass(frozen=True, slots=True)
class Window:
    """An argument at all sizes: a window of a memory whose strides are of the kind that a seed draws."""

    memory: int
    shape: tuple[str | int, ...]
    kind: int
    offset: int

    def at(self, sizes: Sizes) -> Argument:
        """The window at sizes."""
        shape = tuple(sizes.get(n, n) if isinstance(n, str) else n for n in self.shape)
        return Argument(self.memory, shape, strides(random.Random(self.kind), shape), self.offset)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class SizedProgram:
    """Inputs by size, the lines of a function of them, and the sizes of its calls."""

    memories: tuple[Memory, ...]
    windows: tuple[Window, ...]
    calls: tuple[tuple[int, int], ...]
    lines: tuple[str, ...]
    returned: tuple[str, ...]

    def __str__(self) -> str:
        """The sizes, the inputs, a line each, and the function."""
        described = [f"# {self.memories[w.memory]} {w} {w.at({'a': 5, 'b': 7})}" for w in self.windows]
        return "\n".join([f"# sizes {self.calls}", *described, self.at(self.calls[0]).source()])

    def at(self, call: tuple[int, int]) -> Program:
        """The program at the sizes of a call."""
        memories, arguments = inputs_at(self.memories, self.windows, call)
        return Program(memories, arguments, self.lines, self.returned)


def inputs_at(
    memories: Sequence[Memory], windows: Sequence[Window], call: tuple[int, int]
) -> tuple[tuple[Memory, ...], tuple[Argument, ...]]:
    """Memories as large as their windows want them at the sizes of a call, and the windows."""
    arguments = tuple(window.at({"a": call[0], "b": call[1]}) for window in windows)
    ends = [[extent(a.shape, a.stride) + a.offset for a in arguments if a.memory == k] for k in range(len(memories))]
    grown = [
        Memory(m.dtype, m.size + max(end, default=0), m.grad, m.made) for m, end in zip(memories, ends, strict=True)
    ]
    return tuple(grown), arguments


def draw_windows(rng: random.Random) -> tuple[tuple[Memory, ...], tuple[Window, ...]]:
    """One to four windows of one to three memories, the first with gradients; sizes are what windows leave over."""
    memories: list[Memory] = []
    windows: list[Window] = []
    for k in range(rng.choice([1, 2, 2, 3])):
        dtype = rng.choice(DTYPES) if k and rng.random() < 0.45 else rng.choice(FLOATS)
        grad = dtype.startswith(("float", "bfloat")) and (not k or rng.random() < 0.8)
        memories.append(Memory(dtype, rng.choice([0, 0, 2]), grad, grad and rng.random() < 0.4))
        for _ in range(rng.choice([1, 1, 1, 2])):
            shape = rng.choice(FIXED) if windows and rng.random() < 0.15 else rng.choice(SHAPES)
            windows.append(Window(k, shape, rng.randrange(1 << 16), rng.choice([0] * 12 + [1, 3])))
    rng.shuffle(windows)
    return tuple(memories), tuple(windows[:4])


def draw_calls(rng: random.Random) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Three pairs of sizes of 2 or more, and two of which one size is 0 or 1."""
    ample = [(rng.randint(2, 7), rng.randint(2, 9)) for _ in range(3)]
    n = rng.randint(2, 6)
    return ample, rng.sample([(0, n), (1, n), (n, 0), (n, 1), (1, 1), (0, 0), (0, 1)], 2)


def draw(seed: int, most: int = 7) -> SizedProgram:
    """The program of a seed. Half of them run at all small sizes, the others at those that their lines allow."""
    rng = random.Random(seed)
    memories, windows = draw_windows(rng)
    ample, small = draw_calls(rng)
    if rng.random() < 0.5:
        ample, small = ample + small, []
    lines: list[str] = []

    def grown(more: Sequence[str], calls: Sequence[tuple[int, int]]) -> list[State]:
        """The values at each size, as far as eager gets."""
        states = []
        for call in calls:
            state = grown_values(*inputs_at(memories, windows, call), list(more), rng)
            if state is None:
                break
            states.append(state)
        return states

    states = grown(lines, ample)
    wanted = rng.randrange(1, most + 1)
    for _ in range(12 * wanted):
        if len(lines) >= wanted or not states:
            break
        line = statement(states, len(lines), [*STATEMENTS, *SIZED])
        after = grown([*lines, line], ample) if line else []
        if len(after) == len(ample):
            lines.append(line)
            states = after
    while True:
        program = SizedProgram(
            memories, windows, (*ample, ample[0]), tuple(lines), _returned(rng, grown(lines, ample)[0])
        )
        if all(map(_runs, map(program.at, ample))) or not lines:
            break
        lines.pop()  # there is no way back through it
    small = [call for call in small if grown(lines, [call]) and _runs(program.at(call))]
    return replace(program, calls=(*ample[:2], *small, *ample[2:], ample[0]))


def _returned(rng: random.Random, state: State) -> tuple[str, ...]:
    """Up to three values, the last that was made, and one that has a gradient."""
    names = list(state.values)
    made = [name for name in names if name.startswith("v")]
    differentiable = [name for name in made if state.values[name].requires_grad]
    found = [*rng.sample(names, min(len(names), rng.choice([0, 1, 2]))), *made[-1:], *differentiable[-1:]]
    return tuple(dict.fromkeys(found or names[:1]))


def _runs(program: Program) -> bool:
    try:
        for values in (1, 2):
            ran(program.function(), program, values)
    except (RuntimeError, IndexError, TypeError, ValueError, ZeroDivisionError):
        return False
    return True


def several(x: Tensor) -> bool:
    return x.dim() > 0


def sized(s: State) -> str:
    """A value that a size goes into, as a number, a shape or a place."""
    r = s.rng
    x = s.pick(several)
    d, e = dim(s, x), dim(s, x)
    n, m, last = f"{x}.shape[{d}]", f"{x}.shape[{e}]", f"{x}.shape[-1]"
    half = f"{n} // 2"
    forms = [
        f"{x} / ({n} + 1)",
        f"{x} * {n} - {m}",
        f"{x}.sum({d}) / max({n}, 1)",
        f"{x} * ({n} ** -0.5 if {n} else 1.0)",
        f"torch.full_like({x}, {n})",
        f"{x}.narrow({d}, 0, {n} - {half})",
        f"{x}.narrow({d}, {half}, {n} - {half})",
        f"{x}[: {x}.shape[0] // 2]",
        f"{x}[..., {last} // 2 :]",
        f"{x}[..., :: {r.choice([2, 3])}]",
        f"{x}.split({half} + 1, {d})[0]",
        f"{x}.unfold({d}, {half} + 1, {r.choice([1, 2])})",
        f"{x}.as_strided(({n},), (1,))",
        f"F.pad({x}, (0, (4 - {last} % 4) % 4))",
        f"F.pad({x}, (1, {last}), value={scalar(s)})",
        f"F.pad({x}, (0, (4 - {last} % 4) % 4)).unflatten(-1, (-1, 4)){r.choice(['', '.sum(-1)', '.sum(-2)'])}",
        f"{x}.flatten(0, 1)",
        f"{x}.flatten({r.choice([0, -2])})",
        f"{x}.reshape({x}.shape[0], -1)",
        f"{x}.reshape(-1, {last})",
        f"{x}.reshape({x}.shape[::-1])",
        f"{x}.t().reshape({x}.shape)",
        f"{x}.expand({n}, *{x}.shape)",
        f"{x}.unsqueeze({d}).expand_as({x}.unsqueeze({d}))",
        f"{x}.repeat(*[{r.choice([1, 2])}] * {x}.dim())",
        f"{x} + torch.arange({last})",
        f"torch.where(torch.arange({last}) < {r.choice([1, 2, 3])}, {x}, {operand(s, x)})",
        f"torch.where(torch.arange({last}) <= torch.arange({last})[:, None], {x}.sum(), {scalar(s)})",
        f"torch.where(torch.arange({last}) < {last} // 2, {x}, {scalar(s)})",
        f"{x}.roll({half}, {d})",
        f"{x}.tril({half})",
        f"{x}.diagonal({half} - 1)",
        f"torch.cat([{x}, {x}.narrow({d}, 0, {half})], {d})",
        f"torch.cat([{x}.narrow({d}, {half}, {n} - {half}), {x}.narrow({d}, 0, {half})], {d})",
        f"torch.stack([{x}, {x} * {n}], {d})",
        f"{x}.new_zeros({n}) + {x}.sum()",
        f"torch.ones({n}, {m})",
        f"F.layer_norm({x}, {x}.shape[-1:])" if floating(s.values[x]) else f"{x}.sum({d}, keepdim=True)",
        f"F.rms_norm({x}, {x}.shape[-1:])" if floating(s.values[x]) else f"{x}.amax({d})",
        f"{x} @ {x}.mT / ({last} + 1)",
        f"{x}.mT @ {x}",
        f"torch.outer({x}.flatten(), {x}.flatten()[:2])",
        f"F.linear({x}, (torch.arange(2 * {last}).view(2, -1) % 5 - 2).to({x}.dtype))",
        f"{x} @ torch.ones({last}, {r.choice([1, 3])}, dtype={x}.dtype)",
        f"{x}.gather({d}, torch.arange({x}.numel()).view({x}.shape) * 3 % max({n}, 1))",
        f"{x}.scatter_add({d}, torch.arange({x}.numel()).view({x}.shape) * 3 % max({n}, 1), {x})",
        f"{x}.index_select({d}, torch.arange({half}))",
        f"{x}.index_add({d}, torch.arange({n}) // 2, {x})",
        f"{x}[torch.arange({x}.shape[0]).flip(0)]",
        f"{x}[torch.arange({x}.shape[0])[:, None], torch.zeros(2, dtype=torch.int64)]",
        f"F.embedding(torch.arange({last}) % 2, {x}.reshape(-1, {last}))",
        f"F.one_hot(torch.arange({n}) % 3, 3) * {x}.sum()",
        f"F.scaled_dot_product_attention(*[{x}.reshape(1, -1, {last})] * 3, is_causal={r.choice([True, False])})",
        f"F.cross_entropy({x}.reshape(-1, {last}), torch.arange({x}.numel() // max({last}, 1)) % max({last}, 1))",
        f"F.interpolate({x}.reshape(1, 1, -1), scale_factor=2)",
        f"F.avg_pool1d({x}.reshape(1, -1, {last}), 2, {r.choice([1, 2])})",
        f"{x}.view({x}.shape)",
        f"{x} if {n} > 3 else {x} * 2",
    ]
    return r.choice(forms)


def sized_in_place(s: State) -> str:
    """A write into a part that a size says, or of a size."""
    r = s.rng
    x = s.pick(several)
    d = dim(s, x)
    n, y = f"{x}.shape[{d}]", operand(s, x)
    forms = [
        f"{x}.narrow({d}, 0, {n} // 2).{r.choice(['mul_', 'add_', 'fill_'])}({scalar(s)})",
        f"{x}[{x}.shape[0] // 2 :] = {y}",
        f"{x}[..., : {x}.shape[-1] // 2] *= {scalar(s)}",
        f"{x}.{r.choice(['add_', 'mul_'])}({n})",
        f"{x}.add_(torch.arange({x}.shape[-1]).to({x}.dtype))",
        f"{x}[torch.arange({x}.shape[0] // 2)] {r.choice(['+=', '='])} {scalar(s)}",
        f"{x}.index_add_({d}, torch.arange({n}), {x} * 2)",
        f"{x}.masked_fill_(torch.arange({x}.shape[-1]) < {n} // 2, {scalar(s)})",
        f"{x}.diagonal().add_({n})",
        f"{x}.copy_({x}.flip({d}))",
        f"{x}.view(-1)[: {n}].{r.choice(['add_', 'mul_'])}({scalar(s)})",
    ]
    return r.choice(forms)


#: As ``fuzz_statements.TEMPLATES``; as often as all of the others.
SIZED: list[Statement] = [(80, sized, True), (25, sized_in_place, False)]
