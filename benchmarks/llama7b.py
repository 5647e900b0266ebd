"""A Llama of 32 layers, 6.7 billion parameters: to be predicted, with ``--fake-weights``.

"full" is 1 x 2,048 tokens, "bench" 8 x 2,048.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

FULL = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 32000,
}
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 131,
}
CONFIGS = {"full": FULL, "bench": FULL, "small": SMALL}
SHAPES = {"full": (1, 2048), "bench": (8, 2048), "small": (1, 21)}


def model(size: str = "full") -> torch.nn.Module:
    """The model in evaluation mode."""
    config = LlamaConfig(use_cache=False, num_key_value_heads=CONFIGS[size]["num_attention_heads"], **CONFIGS[size])
    return build(lambda: LlamaForCausalLM(config), size, DTYPE, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids."""
    return (), {"input_ids": tokens(*SHAPES[size], CONFIGS[size]["vocab_size"])}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids, which are their own labels: the result has a loss."""
    args, kwargs = inputs(size)
    return args, {**kwargs, "labels": kwargs["input_ids"]}
