"""A Llama decoder of 1.1 billion parameters, 4 x 2048 tokens: the shapes of Llama 3.2 1B with 32,000 words."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "use_cache": False,
        "num_hidden_layers": 16,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    },
    "small": {
        "use_cache": False,
        "num_hidden_layers": 2,
        "hidden_size": 48,
        "intermediate_size": 100,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 131,
    },
}
#: What is measured side by side with other compilers: fewer layers of the same width, the same batch.
CONFIGS["bench"] = {**CONFIGS["full"], "num_hidden_layers": 4}

#: Rows and columns of token ids.
SHAPES = {"full": (4, 2048), "small": (2, 21), "bench": (4, 2048)}
VOCABULARY = {"full": 32000, "small": 131, "bench": 32000}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = LlamaConfig(**CONFIGS[size])
    return build(lambda: LlamaForCausalLM(config), size, dtype, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids."""
    rows, columns = SHAPES[size]
    return (), {"input_ids": tokens(rows, columns, VOCABULARY[size])}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids, which are their own labels: the result has a loss."""
    args, kwargs = inputs(size)
    return args, {**kwargs, "labels": kwargs["input_ids"]}
