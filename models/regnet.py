"""RegNetY 4GF, groups and squeeze and excitation, 64 images of 224 x 224."""

from __future__ import annotations

from typing import Any

import torch
from transformers import RegNetConfig, RegNetForImageClassification
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, images

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "num_labels": 1000,
        "hidden_sizes": [128, 192, 512, 1088],
        "depths": [2, 6, 12, 2],
        "groups_width": 64,
    },
    "small": {
        "num_labels": 11,
        "embedding_size": 8,
        "hidden_sizes": [16, 24],
        "depths": [1, 2],
        "groups_width": 8,
    },
}

#: Number of images, and their side.
SHAPES = {"full": (64, 224), "small": (2, 37)}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = RegNetConfig(**CONFIGS[size])
    return build(lambda: RegNetForImageClassification(config), size, dtype, no_init_weights)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Images."""
    count, side = SHAPES[size]
    return (), {"pixel_values": images(count, side, dtype)}


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Images and their classes: the result has a loss."""
    args, kwargs = inputs(size, dtype)
    return args, {**kwargs, "labels": torch.arange(SHAPES[size][0]) % CONFIGS[size]["num_labels"]}
