"""EfficientNet B0, 128 images of 224 x 224.

Squeeze and excitation, depthwise convolutions, SiLU.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import EfficientNetConfig, EfficientNetForImageClassification
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, images

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "num_labels": 1000,
        "width_coefficient": 1.0,
        "depth_coefficient": 1.0,
        "image_size": 224,
        "dropout_rate": 0.2,
        "hidden_dim": 1280,
    },
    "small": {
        "num_labels": 11,
        "width_coefficient": 0.2,
        "depth_coefficient": 0.2,
        "image_size": 37,
        "hidden_dim": 256,
        "in_channels": [32, 16, 24],
        "out_channels": [16, 24, 40],
        "depthwise_padding": [],
        "strides": [1, 2, 2],
        "num_block_repeats": [1, 2, 1],
        "expand_ratios": [1, 6, 6],
        "kernel_sizes": [3, 3, 5],
    },
}

#: Number of images, and their side.
SHAPES = {"full": (128, 224), "small": (2, 37)}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = EfficientNetConfig(**CONFIGS[size])
    return build(lambda: EfficientNetForImageClassification(config), size, dtype, no_init_weights)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Images."""
    count, side = SHAPES[size]
    return (), {"pixel_values": images(count, side, dtype)}


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Images and their classes: the result has a loss."""
    args, kwargs = inputs(size, dtype)
    return args, {**kwargs, "labels": torch.arange(SHAPES[size][0]) % CONFIGS[size]["num_labels"]}
