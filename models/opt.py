"""OPT 125M, 12 layers, ReLU and learned positions, 8 x 1024 tokens.

Nothing is dropped: OPT has one rate for attention and the rest.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import OPTConfig, OPTForCausalLM
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "use_cache": False,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
    "small": {
        "use_cache": False,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "num_hidden_layers": 2,
        "hidden_size": 48,
        "ffn_dim": 100,
        "num_attention_heads": 3,
        "word_embed_proj_dim": 48,
        "max_position_embeddings": 32,
        "vocab_size": 131,
    },
}

#: Rows and columns of token ids.
SHAPES = {"full": (8, 1024), "small": (2, 19)}
VOCABULARY = {"full": 50272, "small": 131}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = OPTConfig(**CONFIGS[size])
    return build(lambda: OPTForCausalLM(config), size, dtype, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids."""
    rows, columns = SHAPES[size]
    return (), {"input_ids": tokens(rows, columns, VOCABULARY[size])}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids, which are their own labels: the result has a loss."""
    args, kwargs = inputs(size)
    return args, {**kwargs, "labels": kwargs["input_ids"]}
