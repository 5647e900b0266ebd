"""One class a failure. The message is one line: it names the thing and says what to do next."""

from __future__ import annotations


class OptfuseError(Exception):
    """The base of every error that a user can cause or mend. The command line prints it and exits with code 2."""


class InvalidInstanceError(OptfuseError):
    """An instance that breaks its own format: a cycle, a dangling reference, a negative size, an unknown version."""


class InvalidSolutionError(OptfuseError):
    """A solution that cannot be read, or that belongs to another instance."""


class InvalidOptionError(OptfuseError):
    """An unknown option, or a value out of range."""


class IllegalKernelError(OptfuseError):
    """A kernel that may not be: the message names the ops and the violated condition."""


class RuleError(OptfuseError):
    """A rule of the user's that cannot be read, or that matches no op: the message has the nearest names."""


class RuleConflictError(IllegalKernelError):
    """Rules that no schedule obeys: the message names some that conflict, each needed for that."""


class DefectError(OptfuseError):
    """Something of our own that does not hold, whatever the input: to be reported, with the instance."""


class CaptureError(OptfuseError):
    """A model that the frontend cannot turn into a graph."""


class InvalidGraphError(OptfuseError):
    """A loop graph that does not verify: the message names the op."""


class PlanError(OptfuseError):
    """A saved plan that is missing, incomplete, or does not match the source beside it."""


class UnknownClassError(PlanError):
    """A plan whose call has a class that this process does not know: its library is not imported."""


class VerificationError(OptfuseError):
    """An emitted program whose results differ from the reference, or a kernel that does not compile."""


class OutputError(OptfuseError):
    """A file or folder that cannot be written."""


class InvalidInputError(OptfuseError):
    """A tensor that a program cannot take: its dtype, shape, device, or strides differ from those it was made for."""


class ModelFileError(OptfuseError):
    """A model file that is missing, does not load, or lacks a function it must have."""


class InvalidPackingError(OptfuseError):
    """A packing problem that cannot be read: a missing column, a lifetime that ends before it starts, two equal ids."""


class InfeasibleError(OptfuseError):
    """No schedule obeys the rules and the memory cap, or none was found that does: the message says what to relax.

    ``proven``: there is none.
    """

    def __init__(self, message: str, *, proven: bool = False) -> None:
        super().__init__(message)
        self.proven = proven


class BatchError(OptfuseError):
    """A batch that cannot start: no sources, two of one name, a folder that is no run or is in use."""


class InductorError(OptfuseError):
    """Inductor's own fusion of a graph could not be had: no way to hand it over, or its process failed or was late."""


class RankOrderError(OptfuseError):
    """Ranks of a group that would start their collectives in different orders, and wait for each other forever."""


#: Errors of a compilation that the caller mends: ``torch.compile`` raises them, and runs no graph as it was traced.
FOR_CALLER = (InvalidOptionError, RuleError, RuleConflictError, InfeasibleError, OutputError, RankOrderError)
