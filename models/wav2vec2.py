"""Wav2Vec2 base as a classifier: convolutions over the wave, then 12 layers, 8 pieces of 10 s at 16 kHz.

Neither is time masked nor are layers left out in training: both draw random numbers outside of the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build

DTYPE = torch.bfloat16
TRAINS = True

_PLAIN = {"apply_spec_augment": False, "layerdrop": 0.0, "attention_dropout": 0.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "full": {**_PLAIN, "num_labels": 35},
    "small": {
        **_PLAIN,
        "num_labels": 11,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 100,
        "conv_dim": [16, 16, 16],
        "conv_kernel": [10, 3, 2],
        "conv_stride": [5, 2, 2],
        "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 4,
        "classifier_proj_size": 20,
    },
}

#: Pieces and samples of each.
SHAPES = {"full": (8, 160000), "small": (2, 403)}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = Wav2Vec2Config(**CONFIGS[size])
    return build(lambda: Wav2Vec2ForSequenceClassification(config), size, dtype, no_init_weights)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Waves."""
    pieces, samples = SHAPES[size]
    return (), {"input_values": torch.randn(pieces, samples, generator=torch.Generator().manual_seed(1)).to(dtype)}


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Waves and their classes: the result has a loss."""
    args, kwargs = inputs(size, dtype)
    return args, {**kwargs, "labels": torch.arange(SHAPES[size][0]) % CONFIGS[size]["num_labels"]}
