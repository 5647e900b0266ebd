"""DistilBERT base with its masked-language head, 6 layers, 32 x 512 tokens, no padding.

Attention drops nothing, so that a training step keeps its fused kernel; other dropouts are the configuration's own.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DistilBertConfig, DistilBertForMaskedLM
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "attention_dropout": 0.0,
    },
    "small": {
        "attention_dropout": 0.0,
        "n_layers": 2,
        "dim": 48,
        "n_heads": 3,
        "hidden_dim": 100,
        "max_position_embeddings": 32,
        "vocab_size": 131,
    },
}

#: Rows and columns of token ids.
SHAPES = {"full": (32, 512), "small": (3, 17)}
VOCABULARY = {"full": 30522, "small": 131}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = DistilBertConfig(**CONFIGS[size])
    return build(lambda: DistilBertForMaskedLM(config), size, dtype, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids."""
    rows, columns = SHAPES[size]
    return (), {"input_ids": tokens(rows, columns, VOCABULARY[size])}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids, which are their own labels: the result has a loss."""
    args, kwargs = inputs(size)
    return args, {**kwargs, "labels": kwargs["input_ids"]}
