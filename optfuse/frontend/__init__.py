"""From a model to functional ATen graphs with fake tensors, and back to something that can be called."""

from optfuse.frontend.aot import make_backend
from optfuse.frontend.calling import apply_mutations, gather_inputs, own_tensors, restore_outputs
from optfuse.frontend.captured import CallSpec, Captured, InputSource
from optfuse.frontend.inference import capture
from optfuse.frontend.training import capture_training, train_module

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
