"""DeBERTa v2 base with its masked-language head, 6 layers, attention to content and position, 16 x 512 tokens.

Attention drops nothing; it has terms of position, so that it is matrix products and a softmax, not one kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DebertaV2Config, DebertaV2ForMaskedLM
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "hidden_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "vocab_size": 128100,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "attention_probs_dropout_prob": 0.0,
    },
    "small": {
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 100,
        "vocab_size": 131,
        "max_position_embeddings": 32,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "attention_probs_dropout_prob": 0.0,
    },
}

#: Rows and columns of token ids.
SHAPES = {"full": (16, 512), "small": (2, 17)}
VOCABULARY = {"full": 128100, "small": 131}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = DebertaV2Config(**CONFIGS[size])
    return build(lambda: DebertaV2ForMaskedLM(config), size, dtype, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids."""
    rows, columns = SHAPES[size]
    return (), {"input_ids": tokens(rows, columns, VOCABULARY[size])}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids, which are their own labels: the result has a loss."""
    args, kwargs = inputs(size)
    return args, {**kwargs, "labels": kwargs["input_ids"]}
