"""ModernBERT base with its masked-language head, 22 layers, local and global attention, 16 x 1024 tokens."""

from __future__ import annotations

from typing import Any

import torch
from transformers import ModernBertConfig, ModernBertForMaskedLM
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {},
    "small": {
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 100,
        "vocab_size": 131,
        "max_position_embeddings": 64,
        "local_attention": 8,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
}

#: Rows and columns of token ids.
SHAPES = {"full": (16, 1024), "small": (2, 21)}
VOCABULARY = {"full": 50368, "small": 131}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = ModernBertConfig(**CONFIGS[size])
    return build(lambda: ModernBertForMaskedLM(config), size, dtype, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids."""
    rows, columns = SHAPES[size]
    return (), {"input_ids": tokens(rows, columns, VOCABULARY[size])}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids, which are their own labels: the result has a loss."""
    args, kwargs = inputs(size)
    return args, {**kwargs, "labels": kwargs["input_ids"]}
