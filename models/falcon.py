"""Falcon 7B, 4 of its 32 layers, one head of keys for all of the queries, 4 x 1024 tokens."""

from __future__ import annotations

from typing import Any

import torch
from transformers import FalconConfig, FalconForCausalLM
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
        "num_hidden_layers": 2,
        "hidden_size": 48,
        "num_attention_heads": 3,
        "vocab_size": 131,
    },
}

#: Rows and columns of token ids.
SHAPES = {"full": (4, 1024), "small": (2, 19)}
VOCABULARY = {"full": 65024, "small": 131}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = FalconConfig(**CONFIGS[size])
    return build(lambda: FalconForCausalLM(config), size, dtype, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids."""
    rows, columns = SHAPES[size]
    return (), {"input_ids": tokens(rows, columns, VOCABULARY[size])}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids, which are their own labels: the result has a loss."""
    args, kwargs = inputs(size)
    return args, {**kwargs, "labels": kwargs["input_ids"]}
