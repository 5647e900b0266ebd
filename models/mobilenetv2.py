"""MobileNetV2, 128 images of 224 x 224."""

from __future__ import annotations

from typing import Any

import torch
from transformers import MobileNetV2Config, MobileNetV2ForImageClassification
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, images

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {"num_labels": 1000},
    "small": {"num_labels": 11, "depth_multiplier": 0.1, "min_depth": 4},
}
#: What is measured side by side with other compilers is the full model.
CONFIGS["bench"] = CONFIGS["full"]

#: Number of images, and their side.
SHAPES = {"full": (128, 224), "small": (2, 37), "bench": (128, 224)}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = MobileNetV2Config(**CONFIGS[size])
    return build(lambda: MobileNetV2ForImageClassification(config), size, dtype, no_init_weights)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Images."""
    count, side = SHAPES[size]
    return (), {"pixel_values": images(count, side, dtype)}


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Images and their classes: the result has a loss."""
    args, kwargs = inputs(size, dtype)
    return args, {**kwargs, "labels": torch.arange(SHAPES[size][0]) % CONFIGS[size]["num_labels"]}
