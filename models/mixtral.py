"""A mixture of experts: Mixtral 8x7B at a quarter of its width, 6 layers, 2 of 8 experts a token, 4 x 1024 tokens."""

from __future__ import annotations

from typing import Any

import torch
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "use_cache": False,
        "num_hidden_layers": 6,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
    },
    "small": {
        "use_cache": False,
        "num_hidden_layers": 2,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 131,
        "num_local_experts": 4,
    },
}

#: Rows and columns of token ids.
SHAPES = {"full": (4, 1024), "small": (2, 21)}
VOCABULARY = {"full": 32000, "small": 131}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = MixtralConfig(**CONFIGS[size])
    return build(lambda: MixtralForCausalLM(config), size, dtype, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids."""
    rows, columns = SHAPES[size]
    return (), {"input_ids": tokens(rows, columns, VOCABULARY[size])}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids, which are their own labels: the result has a loss."""
    args, kwargs = inputs(size)
    return args, {**kwargs, "labels": kwargs["input_ids"]}
