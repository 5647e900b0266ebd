"""SegFormer B0, segmentation into 150 classes, 8 images of 512 x 512."""

from __future__ import annotations

from typing import Any

import torch
from transformers import SegformerConfig, SegformerForSemanticSegmentation
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, images

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "num_labels": 150,
        "attention_probs_dropout_prob": 0.0,
    },
    "small": {
        "num_labels": 11,
        "attention_probs_dropout_prob": 0.0,
        "num_encoder_blocks": 2,
        "depths": [1, 1],
        "sr_ratios": [4, 2],
        "hidden_sizes": [16, 24],
        "patch_sizes": [7, 3],
        "strides": [4, 2],
        "num_attention_heads": [1, 2],
        "mlp_ratios": [2, 2],
        "decoder_hidden_size": 20,
    },
}

#: Number of images, and their side.
SHAPES = {"full": (8, 512), "small": (2, 40)}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = SegformerConfig(**CONFIGS[size])
    return build(lambda: SegformerForSemanticSegmentation(config), size, dtype, no_init_weights)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Images."""
    count, side = SHAPES[size]
    return (), {"pixel_values": images(count, side, dtype)}


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Images and their classes: the result has a loss."""
    args, kwargs = inputs(size, dtype)
    count, side = SHAPES[size]
    labels = torch.arange(count * side * side) % CONFIGS[size]["num_labels"]
    return args, {**kwargs, "labels": labels.view(count, side, side)}
