"""Whether the GPU waits for the host while programs run plainly: where it does, CUDA graphs are worth their memory.

A mark is queued at the start of a plain call, and looked at when the host has launched all of the call. If the device
has reached it, it has worked off all that was queued before and is less than a call behind the host: it waits, or soon
would. Between calls the host does other work (guards, autograd, an optimizer); a device that runs dry then reaches the
mark as well. If it has not reached it after some calls, the device is behind, and to spare the host gains nothing.

A loop that reads a result in each step (``loss.item()``) lets the device run dry anyway. So the host must also take
some share of the GPU's predicted time. No call waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Plain calls that are timed, after the first. While they run, a device that is slower than the host falls behind.
TIMED = 3
#: The host must take at least this share of the GPU's predicted time: the rest of a step needs the host, too.
HOST_SHARE = 0.35


@dataclass(slots=True)
class Pace:
    """Times of programs that run one after the other, in microseconds: the GPU's as predicted, the host's as measured.

    ``waits`` has, by program, whether the device had reached the start of the call that was timed last. What is found
    of all of them, once one has been timed, holds for each: in a step, the device runs dry at one place or another.
    """

    gpu: list[float] = field(default_factory=list)
    host: list[list[float]] = field(default_factory=list)
    waits: list[bool] = field(default_factory=list)
    _worth: bool | None = None

    def add(self, gpu_us: float) -> int:
        """A number for one more program, predicted to keep the GPU busy for so long."""
        self.gpu.append(gpu_us)
        self.host.append([])
        self.waits.append(False)
        return len(self.gpu) - 1

    def note(self, number: int, host_us: float, *, waits: bool) -> None:
        """How long the host took for a call of a program, and whether the device reached the call's start meanwhile."""
        self.host[number].append(host_us)
        self.waits[number] = waits

    def is_known(self, number: int) -> bool:
        """Whether calls of a program have been timed."""
        return self._worth is not None or len(self.host[number]) >= TIMED

    def is_worth_a_graph(self) -> bool:
        """Whether the device waits for the host, which takes a good part of the GPU's time."""
        if self._worth is None:
            timed = [(min(host), gpu) for host, gpu in zip(self.host, self.gpu, strict=True) if host]
            enough = sum(host for host, _ in timed) > HOST_SHARE * sum(gpu for _, gpu in timed)
            self._worth = any(self.waits) and enough
        return self._worth

    def __str__(self) -> str:
        host = sum(min(times) for times in self.host if times)
        behind = "runs dry" if any(self.waits) else "is behind"
        return f"the host takes {host:,.0f} us a call, the GPU {sum(self.gpu):,.0f}, and the GPU {behind}"
