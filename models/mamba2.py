"""Mamba 2 130M, 12 of its 24 layers, in the plain form by chunks of 256 tokens, 4 x 1024 tokens."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Mamba2Config, Mamba2ForCausalLM
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "use_cache": False,
        "num_hidden_layers": 12,
        "hidden_size": 768,
        "num_heads": 24,
        "head_dim": 64,
        "vocab_size": 50288,
        "n_groups": 1,
    },
    "small": {
        "use_cache": False,
        "num_hidden_layers": 1,
        "hidden_size": 24,
        "num_heads": 4,
        "head_dim": 12,
        "state_size": 5,
        "n_groups": 1,
        "chunk_size": 4,
        "vocab_size": 131,
    },
}

#: Rows and columns of token ids.
SHAPES = {"full": (4, 1024), "small": (2, 10)}
VOCABULARY = {"full": 50288, "small": 131}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = Mamba2Config(**CONFIGS[size])
    return build(lambda: Mamba2ForCausalLM(config), size, dtype, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids."""
    rows, columns = SHAPES[size]
    return (), {"input_ids": tokens(rows, columns, VOCABULARY[size])}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids, which are their own labels: the result has a loss."""
    args, kwargs = inputs(size)
    return args, {**kwargs, "labels": kwargs["input_ids"]}
