"""GPT-2 small, 12 layers, 8 x 1024 tokens.

Attention drops nothing, so that a training step keeps its fused attention kernel; the other dropouts are 0.1.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {"attn_pdrop": 0.0, "use_cache": False},
    "small": {
        "attn_pdrop": 0.0,
        "use_cache": False,
        "n_layer": 2,
        "n_embd": 48,
        "n_head": 3,
        "n_positions": 32,
        "vocab_size": 131,
    },
}
#: What is measured side by side with other compilers: fewer layers of the same width, the same batch.
CONFIGS["bench"] = {**CONFIGS["full"], "n_layer": 6}

#: Rows and columns of token ids.
SHAPES = {"full": (8, 1024), "small": (2, 19), "bench": (8, 1024)}
VOCABULARY = {"full": 50257, "small": 131, "bench": 50257}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = GPT2Config(**CONFIGS[size])
    return build(lambda: GPT2LMHeadModel(config), size, dtype, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids."""
    rows, columns = SHAPES[size]
    return (), {"input_ids": tokens(rows, columns, VOCABULARY[size])}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids, which are their own labels: the result has a loss."""
    args, kwargs = inputs(size)
    return args, {**kwargs, "labels": kwargs["input_ids"]}
