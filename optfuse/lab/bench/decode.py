"""One decode step of a causal language model over a static cache, as ``generate()`` runs it, that can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from optfuse.errors import InvalidOptionError

#: Tokens that are in the cache before the step, as a share of those that it holds.
FILLED = 0.5
#: The largest weight in int8.
LARGEST = 127


class DecodeStep(nn.Module):
    """A model with a cache of half as many tokens as it holds: token ids (B, 1) to logits (B, 1, V).

    Each call writes the same place of the cache, so calls can be repeated. Moving the module to another device or dtype
    moves the cache, too.

    Raises:
        InvalidOptionError: If the model takes no static cache.
    """

    def __init__(self, model: nn.Module, batch: int, length: int) -> None:
        super().__init__()
        self.model = model
        transformers: Any = import_module("transformers")  # of an import statement pyright reads all models
        try:
            self.cache = transformers.StaticCache(config=model.config, max_cache_len=length)
            with torch.no_grad():
                self.filled = int(length * FILLED)
                past = torch.arange(batch * self.filled, device=next(model.parameters()).device) % self._words()
                self._call(past.view(batch, self.filled))
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidOptionError(
                f"{type(model).__name__} has no decode step over a static cache ({type(error).__name__}: {error}); "
                "give a causal language model of transformers"
            ) from error
        self._counts = [x for layer in self.cache.layers for x in vars(layer).values() if _is_count(x)]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of the tokens that follow ``ids``."""
        logits = self._call(ids)
        for count in self._counts:  # some versions of transformers count the tokens in the cache
            count.sub_(ids.shape[1])
        return logits

    def _call(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, past_key_values=self.cache, use_cache=True).logits

    def _words(self) -> int:
        return int(self.model.get_input_embeddings().weight.shape[0])  # type: ignore[operator]

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        for layer in self.cache.layers:
            for name, value in list(vars(layer).items()):
                if isinstance(value, torch.Tensor):
                    setattr(layer, name, fn(value))
        self._counts = [x for layer in self.cache.layers for x in vars(layer).values() if _is_count(x)]
        return super()._apply(fn, recurse)


class Int8Linear(nn.Module):
    """A linear layer whose weights are int8, with a scale for each row: x (..., K) to (..., N)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(1, keepdim=True).clamp_min(1e-12) / LARGEST
        self.register_buffer("weight", (weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale.squeeze(1).to(linear.weight.dtype))
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x @ weight^T, scaled."""
        product = nn.functional.linear(x, self.weight.to(x.dtype)) * self.scale  # type: ignore[operator]
        return product if self.bias is None else product + self.bias


def in_int8(model: nn.Module) -> nn.Module:
    """The model with the weights of its linear layers in int8; changes it."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, Int8Linear(child))
    return model


def _is_count(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_floating_point()
