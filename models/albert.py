"""ALBERT base with its masked-language head: one layer, run 12 times, 32 x 512 tokens.

Attention drops nothing, so that a training step keeps its fused kernel; other dropouts are the configuration's own.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AlbertConfig, AlbertForMaskedLM
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "attention_probs_dropout_prob": 0.0,
    },
    "small": {
        "embedding_size": 24,
        "hidden_size": 48,
        "num_attention_heads": 3,
        "intermediate_size": 100,
        "num_hidden_layers": 2,
        "max_position_embeddings": 32,
        "vocab_size": 131,
        "attention_probs_dropout_prob": 0.0,
    },
}

#: Rows and columns of token ids.
SHAPES = {"full": (32, 512), "small": (3, 17)}
VOCABULARY = {"full": 30000, "small": 131}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = AlbertConfig(**CONFIGS[size])
    return build(lambda: AlbertForMaskedLM(config), size, dtype, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids."""
    rows, columns = SHAPES[size]
    return (), {"input_ids": tokens(rows, columns, VOCABULARY[size])}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids, which are their own labels: the result has a loss."""
    args, kwargs = inputs(size)
    return args, {**kwargs, "labels": kwargs["input_ids"]}
