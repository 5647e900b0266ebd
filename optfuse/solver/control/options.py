"""The options of a solve: one frozen record, passed explicitly."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, Literal, get_args

from optfuse.errors import InvalidOptionError
from optfuse.problem.rules import Rule

Solver = Literal["cpsat", "greedy", "exhaustive"]
OrderChoice = Literal["memory", "program"]


def _default_workers() -> int:
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """Options of ``solve``.

    Attributes:
        solver: "cpsat" (optimal with a proof), "greedy" (the baseline alone), "exhaustive" (an oracle for small ones).
        time_limit: Seconds for the whole solve, memory plan included, from when the instance has been validated and
            its digest is known; above zero and finite.
        calls: How often the program is expected to run. A block then gets no more time than its gap would cost in so
            many calls, but two seconds at least. None: all that the time limit allows.
        workers: Threads that CP-SAT may use.
        seed: Seed of CP-SAT's search.
        deterministic: The same answer on every run: no decision looks at the wall clock. ``time_limit`` then counts
            work, in seconds of a typical core, and CP-SAT runs with one worker; the wall may show more or less.
        interruptible: On a KeyboardInterrupt return the best answer known, with its bound, instead of raising it.
        rules: What must and must not share a kernel (``optfuse.rules``), beside the instance's own rules. The solution
            answers the instance under all of them.
        peak_memory: A hard cap on the bytes live at once, inputs and constants included: a number, or a text such as
            "2.5GiB". Partition, order and copies are then decided together. None: the instance's own rule, if any.
        optimizer_states: Of a whole training step under a cap: how many tensors of each trained parameter's size an
            optimizer keeps (AdamW: 2, SGD with momentum: 1). The cap leaves room for them; 0: they are not counted.
        recompute: Whether an op may be computed in several kernels (not by "greedy").
        order: "memory" looks for the order of least peak memory, "program" keeps the program's order.
        share_launches: Whether kernels that do not depend on each other may run in one launch: as many as need hardly
            more memory. Not with ``order="program"``, nor where communication decides the order.

    Raises:
        InvalidOptionError: When a value is out of range.
    """

    solver: Solver = "cpsat"
    time_limit: float = 30.0
    workers: int = field(default_factory=_default_workers)
    seed: int = 0
    deterministic: bool = False
    interruptible: bool = True
    order: OrderChoice = "memory"
    rules: tuple[Rule, ...] = ()
    peak_memory: int | str | None = None
    recompute: bool = False
    optimizer_states: int = 0
    share_launches: bool = True
    calls: int | None = None

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        _check_choice("solver", self.solver, get_args(Solver))
        _check_choice("order", self.order, get_args(OrderChoice))
        if not _is_number(self.time_limit) or not math.isfinite(self.time_limit) or self.time_limit <= 0:
            raise InvalidOptionError(f"time_limit must be a number of seconds above zero, not {self.time_limit!r}")
        if not _is_whole(self.workers) or self.workers < 1:
            raise InvalidOptionError(f"workers must be a whole number of at least 1, not {self.workers!r}")
        if not _is_whole(self.seed) or not 0 <= self.seed < 1 << 31:
            raise InvalidOptionError(f"seed must be a whole number from 0 to 2**31 - 1, not {self.seed!r}")
        for name in ("deterministic", "interruptible", "share_launches"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidOptionError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if not isinstance(self.rules, (tuple, list)) or not all(isinstance(rule, Rule) for rule in self.rules):
            raise InvalidOptionError(f"rules must be a list of rules such as fuse('a', 'b'), not {self.rules!r}")
        object.__setattr__(self, "rules", tuple(self.rules))
        if not isinstance(self.recompute, bool):
            raise InvalidOptionError(f"recompute must be True or False, not {self.recompute!r}")
        if not _is_whole(self.optimizer_states) or self.optimizer_states < 0:
            raise InvalidOptionError(
                f"optimizer_states must be a whole number of at least 0 (AdamW: 2), not {self.optimizer_states!r}"
            )
        if self.calls is not None and (not _is_whole(self.calls) or self.calls < 1):
            raise InvalidOptionError(f"calls must be a whole number of at least 1, or None, not {self.calls!r}")
        if self.peak_memory is not None:
            memory_size(self.peak_memory)

    @property
    def peak_bytes(self) -> int | None:
        """The cap in bytes."""
        return None if self.peak_memory is None else memory_size(self.peak_memory)

    @classmethod
    def of(cls, options: SolveOptions | Mapping[str, Any] | None) -> SolveOptions:
        """Options as a caller gives them: themselves, a dictionary of some of their fields, or None for the defaults.

        Raises:
            InvalidOptionError: If they are anything else; and as ``from_mapping``.
        """
        if isinstance(options, SolveOptions):
            return options
        if options is None or isinstance(options, Mapping):
            return cls.from_mapping(options or {})
        wanted = 'SolveOptions or a dictionary such as {"time_limit": 10}'
        raise InvalidOptionError(f"options must be {wanted}, not {options!r:.80}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SolveOptions:
        """Build options from plain data; an unknown key is refused with the nearest known one.

        Raises:
            InvalidOptionError: On an unknown key or a value out of range.
        """
        known = [item.name for item in fields(cls)]
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)
                raise InvalidOptionError(
                    f"unknown option {key!r}; did you mean {near[0]!r}? (known: {', '.join(known)})"
                )
        return cls(**values)


def memory_size(value: object) -> int:
    """Bytes of a number, or of a text such as "800MB", "2.5GiB" or "1048576".

    Raises:
        InvalidOptionError: When it is neither, or not above zero.
    """
    size = value if _is_whole(value) else 0
    found = (
        re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?\s*", value, re.IGNORECASE) if isinstance(value, str) else None
    )
    if found is not None:
        prefix = (found[2] or "").lower()
        base = 1024 if prefix.endswith("i") else 1000
        size = int(Fraction(found[1]) * base ** (" kmgt".index(prefix[0]) if prefix else 0))
    if not isinstance(size, int) or size < 1:
        raise InvalidOptionError(f'peak_memory must be bytes above zero, such as 2000000 or "2.5GiB", not {value!r}')
    return size


def _check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidOptionError(f"{name} must be one of {', '.join(known)}, not {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
