"""Swin tiny, stages of 2, 2, 6 and 2 layers, 64 images of 224 x 224."""

from __future__ import annotations

from typing import Any

import torch
from transformers import SwinConfig, SwinForImageClassification
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, images

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {"num_labels": 1000},
    "small": {
        "num_labels": 11,
        "image_size": 40,
        "patch_size": 2,
        "embed_dim": 24,
        "depths": [2, 1],
        "num_heads": [2, 3],
        "window_size": 5,
    },
}
#: What is measured side by side with other compilers: fewer layers of the same width, the same batch.
CONFIGS["bench"] = {**CONFIGS["full"], "depths": [2, 2, 2, 2]}

#: Number of images, and their side.
SHAPES = {"full": (64, 224), "small": (2, 40), "bench": (64, 224)}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = SwinConfig(**CONFIGS[size])
    return build(lambda: SwinForImageClassification(config), size, dtype, no_init_weights)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Images."""
    count, side = SHAPES[size]
    return (), {"pixel_values": images(count, side, dtype)}


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Images and their classes: the result has a loss."""
    args, kwargs = inputs(size, dtype)
    return args, {**kwargs, "labels": torch.arange(SHAPES[size][0]) % CONFIGS[size]["num_labels"]}
