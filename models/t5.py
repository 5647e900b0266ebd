"""T5 base, encoder and decoder of 12 layers, 16 x 512 tokens on both sides.

Nothing is dropped, as when T5 1.1 was trained: the one rate that T5 has would also apply to attention.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import T5Config, T5ForConditionalGeneration
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "use_cache": False,
        "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
        "num_layers": 12,
        "d_model": 768,
        "d_ff": 3072,
        "num_heads": 12,
    },
    "small": {
        "use_cache": False,
        "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
        "num_layers": 1,
        "d_model": 48,
        "d_kv": 16,
        "d_ff": 100,
        "num_heads": 3,
        "vocab_size": 131,
    },
}
#: What is measured side by side with other compilers: fewer layers of the same width, the same batch.
CONFIGS["bench"] = {**CONFIGS["full"], "num_layers": 4}

#: Rows and columns of token ids.
SHAPES = {"full": (16, 512), "small": (2, 15), "bench": (16, 512)}
VOCABULARY = {"full": 32128, "small": 131, "bench": 32128}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = T5Config(**CONFIGS[size])
    return build(lambda: T5ForConditionalGeneration(config), size, dtype, no_init_weights)


def inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids of both sides."""
    rows, columns = SHAPES[size]
    ids = tokens(rows, columns, VOCABULARY[size])
    return (), {"input_ids": ids, "decoder_input_ids": ids.flip(1)}


def training_inputs(size: str = "full") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Token ids and labels: the result has a loss."""
    args, kwargs = inputs(size)
    return args, {**kwargs, "labels": kwargs["decoder_input_ids"]}
