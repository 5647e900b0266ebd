"""Gemma 3 1B, 12 of its 26 layers, local and global attention in turns, 4 x 2048 tokens."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "use_cache": False,
        "num_hidden_layers": 12,
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "sliding_window": 512,
        "vocab_size": 262144,
    },
    "small": {
        "use_cache": False,
        "num_hidden_layers": 2,
        "hidden_size": 48,
        "intermediate_size": 100,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "vocab_size": 131,
        "head_dim": 12,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}

#: Rows and columns of token ids.
SHAPES = {"full": (4, 2048), "small": (2, 21)}
VOCABULARY = {"full": 262144, "small": 131}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = Gemma3TextConfig(**CONFIGS[size])
    return build(lambda: Gemma3ForCausalLM(config), size, dtype, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids."""
    rows, columns = SHAPES[size]
    return (), {"input_ids": tokens(rows, columns, VOCABULARY[size])}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids, which are their own labels: the result has a loss."""
    args, kwargs = inputs(size)
    return args, {**kwargs, "labels": kwargs["input_ids"]}
