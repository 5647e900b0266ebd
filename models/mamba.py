"""Mamba 130M, 4 of its 24 layers, in the plain form that steps through time, 8 x 64 tokens.

Each step of the recurrence is a few operations, so that 64 tokens are already a long graph.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import MambaConfig, MambaForCausalLM
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "use_cache": False,
        "num_hidden_layers": 4,
    },
    "small": {
        "use_cache": False,
        "num_hidden_layers": 1,
        "hidden_size": 24,
        "state_size": 4,
        "time_step_rank": 3,
        "vocab_size": 131,
    },
}

#: Rows and columns of token ids.
SHAPES = {"full": (8, 64), "small": (2, 7)}
VOCABULARY = {"full": 50280, "small": 131}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = MambaConfig(**CONFIGS[size])
    return build(lambda: MambaForCausalLM(config), size, dtype, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids."""
    rows, columns = SHAPES[size]
    return (), {"input_ids": tokens(rows, columns, VOCABULARY[size])}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids, which are their own labels: the result has a loss."""
    args, kwargs = inputs(size)
    return args, {**kwargs, "labels": kwargs["input_ids"]}
