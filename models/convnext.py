"""ConvNeXt tiny, stages of 3, 3, 9 and 3 blocks, 64 images of 224 x 224."""

from __future__ import annotations

from typing import Any

import torch
from transformers import ConvNextConfig, ConvNextForImageClassification
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, images

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {"num_labels": 1000},
    "small": {"num_labels": 11, "hidden_sizes": [24, 40], "depths": [1, 1], "num_stages": 2},
}
#: What is measured side by side with other compilers is the full model.
CONFIGS["bench"] = CONFIGS["full"]

#: Number of images, and their side.
SHAPES = {"full": (64, 224), "small": (2, 36), "bench": (64, 224)}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = ConvNextConfig(**CONFIGS[size])
    return build(lambda: ConvNextForImageClassification(config), size, dtype, no_init_weights)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Images."""
    count, side = SHAPES[size]
    return (), {"pixel_values": images(count, side, dtype)}


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Images and their classes: the result has a loss."""
    args, kwargs = inputs(size, dtype)
    return args, {**kwargs, "labels": torch.arange(SHAPES[size][0]) % CONFIGS[size]["num_labels"]}
