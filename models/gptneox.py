"""GPT-NeoX at the size of Pythia 410M, 24 layers whose attention and perceptron run side by side, 8 x 1024 tokens."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "use_cache": False,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "vocab_size": 50304,
    },
    "small": {
        "use_cache": False,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 100,
        "vocab_size": 131,
        "max_position_embeddings": 32,
    },
}

#: Rows and columns of token ids.
SHAPES = {"full": (8, 1024), "small": (2, 19)}
VOCABULARY = {"full": 50304, "small": 131}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = GPTNeoXConfig(**CONFIGS[size])
    return build(lambda: GPTNeoXForCausalLM(config), size, dtype, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids."""
    rows, columns = SHAPES[size]
    return (), {"input_ids": tokens(rows, columns, VOCABULARY[size])}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids, which are their own labels: the result has a loss."""
    args, kwargs = inputs(size)
    return args, {**kwargs, "labels": kwargs["input_ids"]}
