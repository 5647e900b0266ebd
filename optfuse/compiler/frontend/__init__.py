"""From a model to functional ATen graphs with fake tensors, and back to something that can be called."""

from optfuse.compiler.frontend.calls.calling import apply_mutations, gather_inputs, own_tensors, restore_outputs
from optfuse.compiler.frontend.dynamo_backend import make_backend
from optfuse.compiler.frontend.graph.captured import CallSpec, Captured, InputSource
from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.frontend.tracing.training import capture_training, train_module

__all__ = [
    "CallSpec",
    "Captured",
    "InputSource",
    "apply_mutations",
    "capture",
    "capture_training",
    "gather_inputs",
    "make_backend",
    "own_tensors",
    "restore_outputs",
    "train_module",
]
