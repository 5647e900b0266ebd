"""Whisper base: an encoder of 3,000 frames of sound and a decoder of text, 6 layers each, 8 pieces of 30 s."""

from __future__ import annotations

from typing import Any

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration
from transformers.initialization import no_init_weights

from optfuse.compiler.frontend.random_weights import build, tokens

DTYPE = torch.bfloat16
TRAINS = True

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {
        "use_cache": False,
        "d_model": 512,
        "encoder_layers": 6,
        "decoder_layers": 6,
        "encoder_attention_heads": 8,
        "decoder_attention_heads": 8,
        "encoder_ffn_dim": 2048,
        "decoder_ffn_dim": 2048,
    },
    "small": {
        "use_cache": False,
        "d_model": 48,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 3,
        "decoder_attention_heads": 3,
        "encoder_ffn_dim": 100,
        "decoder_ffn_dim": 100,
        "num_mel_bins": 10,
        "max_source_positions": 15,
        "max_target_positions": 32,
        "vocab_size": 131,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 3,
    },
}

#: Pieces, frequencies, frames, tokens.
SHAPES = {"full": (8, 80, 3000, 256), "small": (2, 10, 30, 11)}
VOCABULARY = {"full": 51865, "small": 131}


def model(size: str = "full", dtype: torch.dtype = DTYPE) -> torch.nn.Module:
    """The model in evaluation mode."""
    config = WhisperConfig(**CONFIGS[size])
    return build(lambda: WhisperForConditionalGeneration(config), size, dtype, no_init_weights)


def inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Spectrograms, and token ids."""
    pieces, bins, frames, columns = SHAPES[size]
    sound = torch.randn(pieces, bins, frames, generator=torch.Generator().manual_seed(1)).to(dtype)
    return (), {"input_features": sound, "decoder_input_ids": tokens(pieces, columns, VOCABULARY[size])}


def training_inputs(size: str = "full", dtype: torch.dtype = DTYPE) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Spectrograms, token ids and labels: the result has a loss."""
    args, kwargs = inputs(size, dtype)
    return args, {**kwargs, "labels": kwargs["decoder_input_ids"].flip(1)}
