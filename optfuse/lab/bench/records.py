"""What a bench is asked for and what it finds, as plain data that travels between processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from optfuse.errors import InvalidOptionError

System = Literal[
    "eager",
    "inductor",
    "inductor-graphs",
    "inductor-max-autotune",
    "optfuse",
    "optfuse-graphs",
    "optfuse-greedy",
    "optfuse-greedy-graphs",
    "optfuse-compile",
    "optfuse-compile-graphs",
    "inductor-own",
    "inductor-imposed",
    "inductor-imposed-greedy",
]
SYSTEMS: tuple[System, ...] = get_args(System)

#: Peers of a row's ratio: the best of those that were measured.
PEERS: tuple[System, ...] = ("eager", "inductor", "inductor-graphs")
OURS: tuple[System, ...] = ("optfuse", "optfuse-graphs")
#: What a user calls: torch.compile with a backend or a mode, and nothing else.
COMPILED: tuple[System, ...] = ("optfuse-compile", "optfuse-compile-graphs")
CALLED: tuple[System, ...] = (*PEERS, *COMPILED)
#: The same code generator with greedy's partition and with the solver's, for two code generators: ours and Inductor's
#: (``lab.bench.inductors``), all under CUDA graphs.
THESIS: tuple[System, ...] = (
    "optfuse-graphs",
    "optfuse-greedy-graphs",
    "inductor-own",
    "inductor-imposed",
    "inductor-imposed-greedy",
)

#: A record as JSON: strings, numbers, lists and objects alone.
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """A row: one model file for inference or a training step, and the systems to run it in, in this order.

    ``batch``: the sequences of a decode step over a static cache, 0 for the model's own inputs. ``int8``: whether the
    weights of its linear layers are int8.
    """

    path: str
    name: str
    train: bool
    systems: tuple[System, ...]
    batch: int = 0
    int8: bool = False

    @property
    def row(self) -> str:
        """The row's name, such as "gpt2", "gpt2 training" or "llama int8 decode 8"."""
        kind = [" int8"] * self.int8 + [" training"] * self.train + [f" decode {self.batch}"] * (self.batch > 0)
        return self.name + "".join(kind)


@dataclass(frozen=True, slots=True)
class Settings:
    """How every row is run.

    Attributes:
        size: Which of a model's sizes.
        device: The cost model's device: a shipped name or a file.
        time_limit, workers: Of the solver, for each graph; 0 workers means one a core.
        check: Whether results are compared with eager and float64.
        seconds: How long a system is timed, at most; at least ten runs.
        loss: Where a training step's loss is computed: "inside" of the model, if it does that, or "outside", of its
            results.
        cache: Tokens that the cache of a decode step holds; half of them are in it.
        plans: A folder for the plan of each graph of optfuse's, without weights; empty for none.
    """

    size: str = "full"
    device: str = "h200"
    time_limit: float = 10.0
    workers: int = 0
    check: bool = True
    seconds: float = 0.5
    plans: str = ""
    loss: Literal["inside", "outside"] = "inside"
    cache: int = 1024


def known_systems(text: str) -> tuple[System, ...]:
    """Systems by name, separated by commas; and "ours", "called" and "thesis" for ``OURS``, ``CALLED`` and ``THESIS``.

    Raises:
        InvalidOptionError: An unknown name.
    """
    found: list[System] = []
    for word in (word.strip() for word in text.split(",") if word.strip()):
        groups: dict[str, tuple[System, ...]] = {"ours": OURS, "called": CALLED, "thesis": THESIS}
        names = groups.get(word, tuple(name for name in SYSTEMS if name == word))
        if not names:
            raise InvalidOptionError(f"unknown system {word!r}; known: {', '.join((*groups, *SYSTEMS))}")
        found.extend(name for name in names if name not in found)
    return tuple(found)
