"""Verify one loop nest: dtypes, arities, iteration variables, bounds, and that no two points store to one element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never, get_args

import sympy

from optfuse.compiler.ir.buffer_layout import extent
from optfuse.compiler.ir.dtypes import ADDED_OR_ROUNDED, FLOATING, HALF, NARROW, integer_range
from optfuse.compiler.ir.index_expressions import affine, bounds
from optfuse.compiler.ir.nodes import (
    Buffer,
    Call,
    Const,
    Dot,
    DType,
    Expr,
    Iota,
    Load,
    LoopNest,
    Reduction,
    ReductionKind,
    Result,
    Scan,
    Store,
    ivar,
    rvar,
    tvar,
)
from optfuse.compiler.ir.scalar_functions import FUNCTIONS
from optfuse.compiler.ir.sizes import variables_of
from optfuse.compiler.ir.traversal import subexpressions
from optfuse.errors import InvalidGraphError

#: The dtypes of a scan's operands.
SCANNED = frozenset({"int32", "int64", "float32", "float64"})
_DTYPES = frozenset(get_args(DType))
_KINDS = frozenset(get_args(ReductionKind))
_ANY_TYPE = frozenset({"where", "eq", "ne", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"})
_NO_FLOAT = frozenset({"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "lshift", "rshift", "position"})
_FLOAT_ONLY = frozenset(
    {name for name, function in FUNCTIONS.items() if function.special and name != "pow"}
    | {"floor", "ceil", "trunc", "round", "copysign", "isnan", "isinf"}
)

Ranges = Mapping[sympy.Symbol, tuple[int, int] | None]


def verify_nest(nest: LoopNest, buffers: Mapping[str, Buffer]) -> None:
    """Check all rules that concern one nest alone; ``buffers`` are the graph's.

    Raises:
        InvalidGraphError: The first fault; the message names the nest.
    """
    _NestCheck(nest, buffers).run()


def result_dtypes(reductions: Sequence[Reduction]) -> list[str]:
    """The dtypes of a nest's results, by result number."""
    dtypes: list[str] = []
    for reduction in reductions:
        match reduction.kind:
            case "welford":
                dtypes += [reduction.operand.dtype] * 3
            case "argmax" | "argmin":
                dtypes.append("int64")
            case _:
                dtypes.append(reduction.operand.dtype)
    return dtypes


class _NestCheck:
    def __init__(self, nest: LoopNest, buffers: Mapping[str, Buffer]) -> None:
        self.nest = nest
        self.buffers = buffers
        parallel: Ranges = {ivar(k): (0, size - 1) for k, size in enumerate(nest.sizes)}
        self.full: Ranges = {**parallel, **{rvar(k): (0, size - 1) for k, size in enumerate(nest.rsizes)}}
        #: the variables of what is stored
        self.stored: Ranges = parallel if nest.scan is None else self.full
        scanned = [operand.dtype for operand in nest.scan.operands] if nest.scan else []
        self.results = result_dtypes(nest.reductions) + scanned
        # (identity, inside a reduction) of checked expressions: shared subtrees are walked once
        self.checked: set[tuple[int, bool]] = set()

    def run(self) -> None:
        nest = self.nest
        if any(size < 1 for size in (*nest.sizes, *nest.rsizes)):
            self.fail(f"a size below 1 among {nest.sizes} and {nest.rsizes}; an empty op has no nest")
        if nest.scan is not None:
            self.scan(nest.scan)
        elif bool(nest.reductions) != bool(nest.rsizes):
            self.fail(f"{len(nest.reductions)} reductions over {len(nest.rsizes)} reduced dimensions")
        if not nest.stores:
            self.fail("it stores nothing")
        for reduction in nest.reductions:
            if reduction.kind not in _KINDS:
                self.fail(f"unknown reduction {reduction.kind}")
            self.expression(reduction.operand, reducing=True)
            self.reduction_dtype(reduction)
        for store in nest.stores:
            for expr in (store.value, *store.indirect):
                self.expression(expr, reducing=False)
            self.store(store)

    def scan(self, scan: Scan) -> None:
        if self.nest.reductions or len(self.nest.rsizes) != 1:
            self.fail("a scan is along one variable, and has no reductions beside it")
        if self.nest.rsizes == (1,):
            self.fail("a scan of one element; its nest is pointwise")
        if len(scan.operands) != len(scan.combine) or not scan.operands:
            self.fail(f"a scan of {len(scan.operands)} operands combines {len(scan.combine)}")
        for operand in scan.operands:
            self.expression(operand, reducing=True)
            if operand.dtype not in SCANNED:
                self.fail(f"a scan of {operand.dtype}")
        both = [operand.dtype for operand in (*scan.operands, *scan.operands)]
        for operand, expr in zip(scan.operands, scan.combine, strict=False):
            if expr.dtype != operand.dtype:
                self.fail(f"a scan of {operand.dtype} combines to {expr.dtype}")
            for part in subexpressions([expr]):
                match part:
                    case Call():
                        self.call(part)
                    case Result() if not (0 <= part.k < len(both) and both[part.k] == part.dtype):
                        self.fail(f"a scan combines result {part.k} as {part.dtype}")
                    case Load() | Iota() | Dot():
                        self.fail("a scan combines results alone")
                    case _:
                        pass

    def fail(self, fault: str) -> None:
        raise InvalidGraphError(f"{self.nest.name}: {fault}")

    def expression(self, expr: Expr, reducing: bool) -> None:
        if (id(expr), reducing) in self.checked:
            return
        self.checked.add((id(expr), reducing))
        if expr.dtype not in _DTYPES:
            self.fail(f"{expr.dtype} is no dtype of the loop IR; only library calls may use it")
        match expr:
            case Const():
                self.constant(expr)
            case Iota():
                self.symbols(expr.index, self.full if reducing else self.stored)
                if expr.dtype == "bool" or expr.dtype in NARROW:
                    self.fail(f"an index value in {expr.dtype}; cast it or compare it")
            case Load():
                for indirect in expr.indirect:
                    self.expression(indirect, reducing)
                self.load(expr, self.full if reducing else self.stored)
            case Call():
                for arg in expr.args:
                    self.expression(arg, reducing)
                self.call(expr)
            case Result():
                self.result(expr, reducing)
            case Dot():
                self.dot(expr)
            case _:
                assert_never(expr)

    def dot(self, dot: Dot) -> None:
        if len(self.nest.sizes) != 2 or self.nest.rsizes:
            self.fail("a product of matrices has rows and columns alone, no reduction or scan beside it")
        if dot.dtype != "float32" or dot.left.dtype not in HALF or dot.left.dtype != dot.right.dtype:
            self.fail(f"a product of {dot.left.dtype} and {dot.right.dtype} in {dot.dtype}")
        for load, own in ((dot.left, ivar(0)), (dot.right, ivar(1))):
            if load.guards or load.indirect:
                self.fail(f"a product's load of {load.buffer} has guards or indirect indices")
            self.load(load, {own: self.full[own], rvar(0): (0, dot.terms - 1)})

    def constant(self, const: Const) -> None:
        if const.dtype == "bool" or const.dtype in FLOATING:
            return
        low, high = integer_range(const.dtype)
        if not low <= const.value <= high:
            self.fail(f"the constant {const.value} is no {const.dtype}")

    def result(self, result: Result, reducing: bool) -> None:
        if reducing:
            self.fail("a reduction's operand uses a result; make it two nests")
        if not 0 <= result.k < len(self.results):
            self.fail(f"result {result.k} of {len(self.results)}")
        if self.results[result.k] != result.dtype:
            self.fail(f"result {result.k} is {self.results[result.k]}, not {result.dtype}")

    def call(self, call: Call) -> None:
        function = FUNCTIONS.get(call.function)
        if function is None:
            self.fail(f"unknown function {call.function}")
            return
        if len(call.args) != function.arity:
            self.fail(f"{call.function} of {len(call.args)} operands; it takes {function.arity}")
        dtypes = [arg.dtype for arg in call.args]
        match function.rule:
            case "cast":
                return
            case "random":
                operands, wanted = dtypes, "float32"
                if set(dtypes) != {"int64"}:
                    self.fail(f"{call.function} of {dtypes}; seed and offset are int64")
            case "where":
                operands, wanted = dtypes[1:], dtypes[1]
                if dtypes[0] != "bool":
                    self.fail(f"the condition of a where is {dtypes[0]}")
            case "bool":
                operands, wanted = dtypes, "bool"
            case "same":
                operands, wanted = dtypes, dtypes[0]
            case _:
                assert_never(function.rule)
        if len(set(operands)) > 1:
            self.fail(f"{call.function} of different dtypes {operands}")
        if call.dtype != wanted:
            self.fail(f"{call.function} of {operands} is {wanted}, not {call.dtype}")
        self.domain(call.function, operands[0])

    def domain(self, function: str, dtype: str) -> None:
        if dtype in NARROW:
            self.fail(f"{function} of {dtype}: a narrow type is not computed with, cast to float32")
        if dtype == "bool" and function not in _ANY_TYPE:
            self.fail(f"{function} of bool; cast it, or use a bitwise function")
        if dtype in FLOATING and function in _NO_FLOAT:
            self.fail(f"{function} of {dtype}")
        if dtype not in FLOATING and function in _FLOAT_ONLY:
            self.fail(f"{function} of {dtype}; cast to a floating type")

    def reduction_dtype(self, reduction: Reduction) -> None:
        dtype = reduction.operand.dtype
        logical = reduction.kind in ("any", "all")
        if dtype in NARROW or logical != (dtype == "bool"):
            self.fail(f"a {reduction.kind} reduction of {dtype}")
        if reduction.kind == "welford" and dtype not in FLOATING:
            self.fail(f"a welford reduction of {dtype}")

    def load(self, load: Load, ranges: Ranges) -> None:
        buffer = self.buffer(load.buffer)
        if load.dtype != buffer.dtype:
            self.fail(f"loads {load.dtype} from {buffer.name}, which is {buffer.dtype}")
        if (load.other is None) != (not load.guards):
            self.fail(f"the load of {buffer.name} has guards without other, or other without guards")
        if load.other is not None and load.other.dtype != load.dtype:
            self.fail(f"the load of {buffer.name} is {load.dtype} but yields {load.other.dtype} when guarded")
        known = self.with_indirect(load, ranges)
        self.symbols(load.index, known)
        narrowed = dict(known)
        for guard in load.guards:
            self.symbols(guard.expr, known)
            if not _narrow(narrowed, guard.expr, guard.lower, guard.upper):
                return
        self.inside(load.index, narrowed, buffer)

    def store(self, store: Store) -> None:
        buffer = self.buffer(store.buffer)
        value = store.value.dtype
        if value != buffer.dtype and not (value in FLOATING and buffer.dtype in FLOATING):
            self.fail(f"stores {value} to {buffer.name}, which is {buffer.dtype}; cast it")
        if store.adds and not (store.indirect and buffer.dtype in ADDED_OR_ROUNDED):
            self.fail(f"the store to {buffer.name} ({buffer.dtype}) cannot add: it is direct, or of another dtype")
        known = self.with_indirect(store, self.stored)
        self.symbols(store.index, known)
        self.inside(store.index, known, buffer)
        form = affine(store.index)
        if not store.indirect and form is not None and not _injective(form[0], self.stored):
            self.fail(f"two points store to the same element of {buffer.name} (index {store.index})")

    def with_indirect(self, access: Load | Store, ranges: Ranges) -> Ranges:
        """The ranges of the variables and of the access's indirect indices, of which none is known."""
        for expr in access.indirect:
            if expr.dtype in FLOATING or expr.dtype == "bool":
                verb = "load" if isinstance(access, Load) else "store"
                self.fail(f"the {verb} of {access.buffer} is indexed by a value of {expr.dtype}")
        return {**ranges, **{tvar(k): None for k in range(len(access.indirect))}}

    def buffer(self, name: str) -> Buffer:
        if name not in self.buffers:
            self.fail(f"unknown buffer {name}")
        return self.buffers[name]

    def symbols(self, expr: sympy.Expr, known: Ranges) -> None:
        for symbol in variables_of(expr):
            if symbol not in known:
                self.fail(f"the index {expr} uses {symbol}, which is no variable here")

    def inside(self, index: sympy.Expr, ranges: Ranges, buffer: Buffer) -> None:
        """Refuse an affine index that leaves the buffer; the range of other indices is known only at run time."""
        total = extent(buffer.shape, buffer.stride)
        exact = {symbol: interval for symbol, interval in ranges.items() if interval is not None}
        interval = None if affine(index) is None else bounds(index, exact)
        if interval is not None and (interval[0] < 0 or interval[1] >= total):
            self.fail(
                f"index {index} reaches {interval[0]}..{interval[1]} of {buffer.name}, which has {total} elements"
            )


def _narrow(ranges: dict[sympy.Symbol, tuple[int, int] | None], expr: sympy.Expr, lower: int, upper: int) -> bool:
    """Apply a guard on one variable to its range. False when the guard is of another form or can never hold."""
    form = affine(expr)
    if form is None or len(form[0]) != 1:
        return False
    ((symbol, factor),) = form[0].items()
    current = ranges[symbol]
    if current is None or abs(factor) != 1:
        return False
    ends = sorted((factor * (lower - form[1]), factor * (upper - 1 - form[1])))
    ranges[symbol] = narrowed = (max(current[0], ends[0]), min(current[1], ends[1]))
    return narrowed[0] <= narrowed[1]


def _injective(coefficients: Mapping[sympy.Symbol, int], ranges: Ranges) -> bool:
    """Whether distinct points have distinct addresses: each step exceeds all that smaller steps can add up to."""
    reach = 0
    highest = {symbol: interval[1] for symbol, interval in ranges.items() if interval is not None}
    for step, high in sorted((abs(coefficients.get(symbol, 0)), high) for symbol, high in highest.items() if high):
        if step <= reach:
            return False
        reach += step * high
    return True
