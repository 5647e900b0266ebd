"""A Qwen3 of 8 layers for decode steps: biases, norms of queries and keys, 16 heads of 128, 8 heads of keys."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "num_hidden_layers": 8,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_bias": True,
        "vocab_size": 32000,
    },
    "small": {
        "num_hidden_layers": 2,
        "hidden_size": 48,
        "intermediate_size": 100,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "attention_bias": True,
        "vocab_size": 131,
    },
}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = Qwen3Config(**CONFIGS[size])
    return build(lambda: Qwen3ForCausalLM(config), size, dtype, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids."""
    return (), {"input_ids": tokens(1, 1, CONFIGS[size]["vocab_size"])}
