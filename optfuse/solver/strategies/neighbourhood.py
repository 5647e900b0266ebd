"""Large neighbourhood search: the kernels of a window are replaced by the best partition of their ops.

For blocks with too many candidates to list. A window holds some linked kernels; the others stay fixed meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits
from optfuse.solver.columns.atoms import Atoms
from optfuse.solver.columns.candidates import Candidate, enumerate_candidates
from optfuse.solver.columns.compatibility import compatible_atoms
from optfuse.solver.control.clock import WALL, Clock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.master.cycles import find_cuts
from optfuse.solver.master.master import Cover, Master, total
from optfuse.solver.master.search import Incumbent, search
from optfuse.solver.strategies.block import LISTS

#: The most candidates of a window, and the most of one scheme and first atom.
WINDOW_CANDIDATES = 20_000
WINDOW_EACH = 400


def improve(
    problem: Instance,
    atoms: Atoms,
    kernels: Sequence[Candidate],
    options: SolveOptions,
    deadline: float,
    clock: Clock = WALL,
    most: int = LISTS.window,
) -> tuple[Candidate, ...]:
    """The partition when no window improves it further, or at ``deadline`` (of ``clock``): acyclic, at most as costly.

    A window has ``most`` atoms, unless its first kernel alone has more. Not for blocks with variants, whose windows
    depend on alternatives chosen outside.
    """
    near = _links(problem, atoms)
    current = list(kernels)
    centres = [kernel.mask for kernel in current]
    while centres and clock.now() < deadline:
        centre = centres.pop()
        if all(kernel.mask != centre for kernel in current):
            continue
        window = _window(current, centre, near, most)
        better = _solved(problem, atoms, window, options, deadline, clock)
        if better is None:
            continue
        rest = [kernel for kernel in current if kernel not in window]
        if find_cuts(atoms, [kernel.mask for kernel in (*rest, *better)]):
            continue
        current = [*rest, *better]
        touched = 0
        for kernel in better:
            for atom in bits(kernel.mask):
                touched |= near[atom]
        centres = [kernel.mask for kernel in current if kernel.mask & touched or kernel.mask in centres]
    return tuple(current)


def _links(problem: Instance, atoms: Atoms) -> list[int]:
    """The atoms that an atom is linked to in any scheme."""
    near = [0] * len(atoms.ops)
    for scheme in range(1, len(problem.schemes)):
        for atom, links in compatible_atoms(problem, atoms, scheme).links.items():
            near[atom] |= links
    return near


def _window(kernels: Sequence[Candidate], centre: int, near: Sequence[int], most: int) -> list[Candidate]:
    """The centre kernel and kernels linked to it, directly or through others, up to the size of a window."""
    window = [kernel for kernel in kernels if kernel.mask == centre]
    inside = centre
    grew = True
    while grew:
        grew = False
        beside = 0
        for atom in bits(inside):
            beside |= near[atom]
        for kernel in kernels:
            fits = (inside | kernel.mask).bit_count() <= most
            if kernel.mask & beside and not kernel.mask & inside and fits:
                window.append(kernel)
                inside |= kernel.mask
                grew = True
    return window


def _solved(
    problem: Instance, atoms: Atoms, window: Sequence[Candidate], options: SolveOptions, deadline: float, clock: Clock
) -> tuple[Candidate, ...] | None:
    """A cheaper partition of a window, or None."""
    within = 0
    for kernel in window:
        within |= kernel.mask
    pool = enumerate_candidates(
        problem, atoms, WINDOW_CANDIDATES, deadline, within=within, each=WINDOW_EACH, clock=clock
    )
    known = {candidate.mask for candidate in pool.candidates}
    candidates = (*pool.candidates, *(kernel for kernel in window if kernel.mask not in known))
    master = Master(candidates, tuple(Cover(atom, None) for atom in bits(within)), ())
    start = Incumbent(tuple(window), total(window))
    found = search(problem, master, atoms, start, 0, options, deadline, clock).incumbent
    return found.kernels if found.cost < start.cost else None
