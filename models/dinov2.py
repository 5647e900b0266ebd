"""DINOv2 base, 12 layers with layer scale, 64 images of 224 x 224."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Dinov2Config, Dinov2ForImageClassification
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, images

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "num_labels": 1000,
        "image_size": 224,
        "patch_size": 14,
        "attention_probs_dropout_prob": 0.0,
    },
    "small": {
        "num_labels": 11,
        "num_hidden_layers": 2,
        "hidden_size": 48,
        "num_attention_heads": 3,
        "image_size": 34,
        "patch_size": 8,
        "attention_probs_dropout_prob": 0.0,
    },
}

#: Number of images, and their side.
SHAPES = {"full": (64, 224), "small": (2, 34)}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = Dinov2Config(**CONFIGS[size])
    return build(lambda: Dinov2ForImageClassification(config), size, dtype, no_init_weights)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Images."""
    count, side = SHAPES[size]
    return (), {"pixel_values": images(count, side, dtype)}


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Images and their classes: the result has a loss."""
    args, kwargs = inputs(size, dtype)
    return args, {**kwargs, "labels": torch.arange(SHAPES[size][0]) % CONFIGS[size]["num_labels"]}
