"""Compare what one step wrote with what it should have written, by the largest error.

Where a whole program's results are judged by their norm (``runtime.check.verify``), here one wrong element must show.
The error is the largest difference from the reference, relative to the largest element of the reference. The limit is
``FACTOR`` times the error of the same computation by torch in the same dtypes, op by op (``FAR`` times where that error
is a tenth of the value), and some roundings: of float32 for what a kernel computes inside, and one of the dtype for the
store.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

FACTOR = 4.0
#: Units in the last place of float32 that pass in any case: a GPU's functions are not rounded correctly.
ROUNDINGS = 16
#: Where torch's own error is so large a part of the value, the value is zero but for rounding (the gradient of a key's
#: bias): another order of summation gives another one, and only what is far larger is wrong.
VANISHING, FAR = 0.1, 32.0
#: Of integers and bools that follow from floats (a comparison, a mask), so many in one may differ.
SHARE = 1000


@dataclass(frozen=True, slots=True)
class Judgement:
    """Errors relative to the largest element; ``roundings``: the error in units of the dtype's epsilon.

    ``wrong`` is empty when the value passes.
    """

    error: float = 0.0
    limit: float = 0.0
    roundings: float = 0.0
    wrong: str = ""

    @property
    def severity(self) -> float:
        """The error as a multiple of its limit, to sort by; infinite if something other than the error is wrong."""
        if self.wrong and not self.error > self.limit:
            return float("inf")
        return self.error / self.limit if self.limit else self.error


def judge(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, *, rounded: bool = True) -> Judgement:
    """Judge a value. All three are of one shape; ``exact`` is float64 where ``got`` is a float.

    ``rounded``: whether integers may follow from floats that were rounded otherwise.
    """
    if got.numel() == 0:
        return Judgement()
    got, eager, exact = (x.detach().cpu() for x in (got, eager, exact))
    if not (got.is_floating_point() or got.is_complex()):
        return _judge_integers(got, eager, rounded)
    wide = torch.complex128 if got.is_complex() else torch.float64
    rounding = torch.finfo(got.dtype).eps
    # what the dtype cannot hold is infinite there, too
    fits = torch.isfinite(got) == torch.isfinite(exact.to(got.dtype))
    misfits = ~(fits | (torch.isfinite(got) == torch.isfinite(eager)))
    a, b, c = (x.to(wide) for x in (got, eager, exact))
    finite = torch.isfinite(a) & torch.isfinite(b) & torch.isfinite(c)
    size = float(c[finite].abs().max()) if bool(finite.any()) else 0.0
    size = size or 1.0
    error, eager_error = (float((x - c)[finite].abs().max()) / size if bool(finite.any()) else 0.0 for x in (a, b))
    inside = rounding if rounding < torch.finfo(torch.float32).eps else torch.finfo(torch.float32).eps
    limit = (FACTOR if eager_error < VANISHING else FAR) * eager_error + ROUNDINGS * inside + rounding
    count = int(misfits.sum())
    wrong = f"{count} elements are nan or infinite, or should be" if count else ""
    if error > limit:
        wrong = wrong or f"error {error:.1e} is above {limit:.1e}"
    return Judgement(error, limit, error / rounding, wrong)


def _judge_integers(got: torch.Tensor, eager: torch.Tensor, rounded: bool) -> Judgement:
    differ = int((got != eager).sum())
    allowed = max(1, got.numel() // SHARE) if rounded else 0
    wrong = f"{differ} of {got.numel()} elements differ" if differ > allowed else ""
    return Judgement(differ / got.numel(), allowed / got.numel(), float(differ), wrong)
