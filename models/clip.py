"""CLIP base with patches of 32: a text and a vision encoder of 12 layers, 64 pairs of 77 tokens and 224 x 224 pixels.

Its loss holds each pair against all others of the batch.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import CLIPConfig, CLIPModel
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, images, tokens

DTYPE = torch.bfloat16
TRAINS = True

_SMALL = {"hidden_size": 48, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 100}
CONFIGS: dict[str, dict[str, Any]] = {
    "full": {},
    "small": {
        "projection_dim": 20,
        "text_config": {**_SMALL, "vocab_size": 131, "max_position_embeddings": 32, "projection_dim": 20},
        "vision_config": {**_SMALL, "image_size": 34, "patch_size": 8, "projection_dim": 20},
    },
}

#: Pairs, tokens of a text, side of an image.
SHAPES = {"full": (64, 77, 224), "small": (3, 13, 34)}
VOCABULARY = {"full": 49408, "small": 131}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = CLIPConfig(**CONFIGS[size])
    return build(lambda: CLIPModel(config), size, dtype, no_init_weights)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Texts and images."""
    pairs, columns, side = SHAPES[size]
    return (), {
        "input_ids": tokens(pairs, columns, VOCABULARY[size]),
        "pixel_values": images(pairs, side, dtype),
    }


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Texts and images; the result has a loss."""
    args, kwargs = inputs(size, dtype)
    return args, {**kwargs, "return_loss": True}
