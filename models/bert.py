"""BERT base with its masked-language head, 12 layers, 32 x 512 tokens, no padding.

Attention drops nothing, so that a training step keeps its fused attention kernel; the other dropouts are 0.1.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {"attention_probs_dropout_prob": 0.0},
    "small": {
        "attention_probs_dropout_prob": 0.0,
        "num_hidden_layers": 2,
        "hidden_size": 48,
        "num_attention_heads": 3,
        "intermediate_size": 100,
        "max_position_embeddings": 32,
        "vocab_size": 131,
    },
}
#: What is measured side by side with other compilers: fewer layers of the same width, the same batch.
CONFIGS["bench"] = {**CONFIGS["full"], "num_hidden_layers": 6}

#: Rows and columns of token ids.
SHAPES = {"full": (32, 512), "small": (3, 17), "bench": (32, 512)}
VOCABULARY = {"full": 30522, "small": 131, "bench": 30522}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = BertConfig(**CONFIGS[size])
    return build(lambda: BertForMaskedLM(config), size, dtype, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids."""
    rows, columns = SHAPES[size]
    return (), {"input_ids": tokens(rows, columns, VOCABULARY[size])}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids, which are their own labels: the result has a loss."""
    args, kwargs = inputs(size)
    return args, {**kwargs, "labels": kwargs["input_ids"]}
