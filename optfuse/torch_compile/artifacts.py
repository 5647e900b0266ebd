"""What torch's own logs show of a graph: ``TORCH_LOGS="fusion,output_code"``, and the pages that ``tlparse`` makes.

``TORCH_TRACE=folder`` writes each graph as traced, its report (certificate, kernels, decisions before the solver), the
emitted module and the fusion problem, or why it is not scheduled; ``tlparse folder`` makes pages of them.
"""

from __future__ import annotations

from collections.abc import Callable

from torch._logging._internal import getArtifactLogger, trace_structured

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.problem.serialize import instance_to_json
from optfuse.schedule.scheduled import ScheduledGraph

#: Only what lies under "torch" reaches the handlers that TORCH_LOGS sets up.
_fusion = getArtifactLogger("torch.optfuse", "fusion")
_output_code = getArtifactLogger("torch.optfuse", "output_code")


def show_scheduled(captured: Captured, schedule: ScheduledGraph) -> None:
    """Log a graph that is scheduled, where torch's logs or traces are asked for."""
    name = schedule.name
    _fusion.debug("%s", schedule.certificate)
    _output_code.debug("%s\n%s", name, schedule.source)
    _artifact(f"{name}.graph", lambda: captured.graph.print_readable(print_output=False))
    _artifact(f"{name}.report", schedule.report)
    _artifact(f"{name}.kernels", lambda: schedule.source)
    _artifact(f"{name}.instance", lambda: instance_to_json(schedule.instance), "json")


def show_left(name: str, why_not: str) -> None:
    """Log a graph that runs as it was traced."""
    _fusion.debug("%s is not scheduled: %s", name, why_not)
    _artifact(f"{name}.why_not", lambda: why_not)


def _artifact(name: str, text: Callable[[], str], encoding: str = "string") -> None:
    trace_structured("artifact", metadata_fn=lambda: {"name": f"optfuse.{name}", "encoding": encoding}, payload_fn=text)
