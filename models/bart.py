"""BART base, encoder and decoder of 6 layers, 16 x 512 tokens on both sides.

Attention drops nothing, so that a training step keeps its fused kernel; other dropouts are the configuration's own.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import BartConfig, BartForConditionalGeneration
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "use_cache": False,
        "d_model": 768,
        "encoder_layers": 6,
        "decoder_layers": 6,
        "encoder_attention_heads": 12,
        "decoder_attention_heads": 12,
        "encoder_ffn_dim": 3072,
        "decoder_ffn_dim": 3072,
    },
    "small": {
        "use_cache": False,
        "d_model": 48,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 3,
        "decoder_attention_heads": 3,
        "encoder_ffn_dim": 100,
        "decoder_ffn_dim": 100,
        "vocab_size": 131,
        "max_position_embeddings": 32,
    },
}

#: Rows and columns of token ids.
SHAPES = {"full": (16, 512), "small": (2, 15)}
VOCABULARY = {"full": 50265, "small": 131}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = BartConfig(**CONFIGS[size])
    return build(lambda: BartForConditionalGeneration(config), size, dtype, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids of both sides."""
    rows, columns = SHAPES[size]
    ids = tokens(rows, columns, VOCABULARY[size])
    return (), {"input_ids": ids, "decoder_input_ids": ids.flip(1)}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids and labels: the result has a loss."""
    args, kwargs = inputs(size)
    return args, {**kwargs, "labels": kwargs["decoder_input_ids"]}
