"""A Mistral decoder with a sliding window of 1024: 8 layers of Mistral 7B at half its width, 4 x 2048 tokens."""

from __future__ import annotations

from typing import Any

import torch
from transformers import MistralConfig, MistralForCausalLM
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "use_cache": False,
        "num_hidden_layers": 8,
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "sliding_window": 1024,
    },
    "small": {
        "use_cache": False,
        "num_hidden_layers": 2,
        "hidden_size": 48,
        "intermediate_size": 100,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 131,
        "sliding_window": 8,
    },
}

#: Rows and columns of token ids.
SHAPES = {"full": (4, 2048), "small": (2, 21)}
VOCABULARY = {"full": 32000, "small": 131}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = MistralConfig(**CONFIGS[size])
    return build(lambda: MistralForCausalLM(config), size, dtype, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids."""
    rows, columns = SHAPES[size]
    return (), {"input_ids": tokens(rows, columns, VOCABULARY[size])}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids, which are their own labels: the result has a loss."""
    args, kwargs = inputs(size)
    return args, {**kwargs, "labels": kwargs["input_ids"]}
