"""Counters of random numbers: four neighbours share one counter of Philox, which yields four words.

Where the lanes of a tile are whole groups of four neighbours, the counters form a tile of a quarter of the lanes.
"""

from __future__ import annotations

from optfuse.compiler.codegen.addresses import Addresses
from optfuse.compiler.codegen.index_arithmetic import Axis, Linear, Named, Run, runs
from optfuse.compiler.codegen.triton_expressions import Value

WORDS = 4


def counters(addresses: Addresses, form: Linear, lanes: Axis, shape: str) -> Value | None:
    """The counters of the numbers at ``form``, with a lane for every four of ``lanes``.

    Args:
        form: Positions, one a point of the tile.
        lanes: The axis of which four neighbours share a counter.
        shape: How its lanes become a dimension of the tile: "[None, :]", say, or "" if they are the tile.

    Returns:
        None if positions do not come in groups of four along the axis.
    """
    if min(lanes.block, lanes.interpret_block) % WORDS or form.constant % WORDS:
        return None
    found = runs(form, addresses.axes)
    leading = [run for run in found if run.axis.name == lanes.name and run.below == 1 and run.coefficient == 1]
    others = [run for run in found if run not in leading]
    atoms = {atom: coefficient for atom, coefficient in form.terms.items() if isinstance(atom, Named)}
    grouped = leading and (leading[0].size or WORDS) % WORDS == 0
    aligned = all(run.coefficient % WORDS == 0 for run in others) and not any(c % WORDS for c in atoms.values())
    whole = all(run.below % WORDS == 0 for run in others if run.axis.name == lanes.name)
    if not (grouped and aligned and whole) or any(lanes.name in atom.axes for atom in atoms):
        return None
    wide = addresses.exceeds_int32(form) is not False
    quad = _quarter(addresses, lanes, shape)
    terms = [(_run(addresses, run, quad, lanes), run.coefficient // WORDS or 1) for run in found]
    terms += [(Value(atom.text, "int64" if atom.wide else "int32", atom.axes), c // WORDS) for atom, c in atoms.items()]
    return addresses.total(terms, form.constant // WORDS, wide)


def _quarter(addresses: Addresses, lanes: Axis, shape: str) -> Value:
    """The axis' positions divided by four."""
    text = f"tl.arange(0, {lanes.constant} // {WORDS}){shape}"
    start = {"parallel": addresses.starts.get(lanes.name), "looped": f"{lanes.name}_start", "whole": None}[lanes.walk]
    if start is not None:
        text = f"{start} // {WORDS} + {text}"
    value = Value(text, "int64" if lanes.wide else "int32", frozenset({lanes.name}))
    return addresses.writer.name(value, f"{lanes.name}quad")


def _run(addresses: Addresses, run: Run, quad: Value, lanes: Axis) -> Value:
    """A run's value, or a quarter of it where it counts single lanes."""
    if run.axis.name != lanes.name or run.uniform:
        return addresses.run(run)
    below, size = run.below // WORDS or 1, run.size
    if run.below == 1 and size is not None:
        size //= WORDS
    text = Run(run.axis, below, size, run.coefficient).of(quad.text)
    return quad if text == quad.text else addresses.named(Value(text, quad.dtype, quad.axes, tightness=5))
