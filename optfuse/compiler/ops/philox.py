"""Random numbers as pure functions of (seed, offset): Philox 4x32-10, bit for bit as in triton's ``tl.rand4x`` and
``tl.randn``.

Source of the idea: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 10
_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_KEY_A, _KEY_B = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ROUND_A, _ROUND_B = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
# the largest float32 scale at which 2**31 - 1 still maps below one
_UNIFORM_SCALE = np.float32(4.6566127342e-10)
_SMALLEST_UNIFORM = np.float32(1.0e-7)


def rand(seed: NDArray[np.int64], offset: NDArray[np.int64]) -> NDArray[np.float32]:
    """Uniform float32 in [0, 1); ``seed`` and ``offset`` broadcast against each other.

    Four neighbouring offsets share a counter, and have one of its four words each.
    """
    offsets = np.asarray(offset, np.int64)
    words = np.stack(_philox(seed, offsets >> 2))
    return _uniform(np.take_along_axis(words, np.broadcast_to(offsets & 3, words.shape[1:])[None], axis=0)[0])


def randn(seed: NDArray[np.int64], offset: NDArray[np.int64]) -> NDArray[np.float32]:
    """Normal float32 by Box and Muller from the first two words; ``seed`` and ``offset`` broadcast."""
    words = _philox(seed, offset)
    radius = np.sqrt(np.float32(-2.0) * np.log(np.maximum(_SMALLEST_UNIFORM, _uniform(words[0]))))
    return radius * np.cos(np.float32(6.283185307179586) * _uniform(words[1]))


def _philox(seed: NDArray[np.int64], offset: NDArray[np.int64]) -> tuple[NDArray[np.uint64], ...]:
    """Four 32-bit words (held in uint64) for the counter (offset, 0, 0) and the key seed."""
    seeds, offsets = np.broadcast_arrays(np.asarray(seed, np.int64), np.asarray(offset, np.int64))
    key, counter = seeds.astype(np.uint64), offsets.astype(np.uint64)
    k0, k1 = key & _MASK, key >> _SHIFT
    c0, c1 = counter & _MASK, counter >> _SHIFT
    c2, c3 = np.zeros_like(c0), np.zeros_like(c0)
    for _ in range(_ROUNDS):
        left, right = _ROUND_B * c2, _ROUND_A * c0
        c0, c2 = (left >> _SHIFT) ^ c1 ^ k0, (right >> _SHIFT) ^ c3 ^ k1
        c1, c3 = left & _MASK, right & _MASK
        k0, k1 = (k0 + _KEY_A) & _MASK, (k1 + _KEY_B) & _MASK
    return c0, c1, c2, c3


def _uniform(word: NDArray[np.uint64]) -> NDArray[np.float32]:
    signed = word.astype(np.uint32).view(np.int32)
    return np.where(signed < 0, ~signed, signed).astype(np.float32) * _UNIFORM_SCALE
