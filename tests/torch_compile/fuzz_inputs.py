"""Inputs of random programs: windows of a few memories, dense or not, empty, expanded, overlapping."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

DTYPES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()
FLOATS = ("float32", "float32", "float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, slots=True)
class Memory:
    """A storage of small numbers; ``grad``: its windows want gradients; ``made``: they are results of autograd's."""

    dtype: str
    size: int
    grad: bool = False
    made: bool = False


@dataclass(frozen=True, slots=True)
class Argument:
    """A window of a memory."""

    memory: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def make_inputs(
    memories: tuple[Memory, ...], arguments: tuple[Argument, ...], seed: int, wide: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """(Leaves that want gradients, arguments): whole or half numbers, the same for each ``seed``, or as float64."""
    generator = torch.Generator().manual_seed(seed)
    leaves: list[Tensor] = []
    found: dict[int, Tensor] = {}
    for k, memory in enumerate(memories):
        dtype = getattr(torch, memory.dtype)
        values = torch.randint(-5, 6, (memory.size,), generator=generator)
        if dtype.is_floating_point:
            base = (values / 2).to(torch.float64 if wide else dtype)
        else:
            base = (values > 0) if memory.dtype == "bool" else values.abs().to(dtype) if seed % 2 else values.to(dtype)
        if memory.made:
            leaves.append(base.requires_grad_())
            base = base * 1
        found[k] = base
    made = []
    for argument in arguments:
        memory = memories[argument.memory]
        if memory.made:
            made.append(found[argument.memory].as_strided(argument.shape, argument.stride, argument.offset))
            continue
        window = found[argument.memory].as_strided(argument.shape, argument.stride, argument.offset)
        made.append(window.requires_grad_(memory.grad))
        if memory.grad:
            leaves.append(made[-1])
    return leaves, made


SHAPES = [
    (),
    (1,),
    (4,),
    (7,),
    (3, 4),
    (4, 3),
    (2, 3, 4),
    (1, 5),
    (5, 1),
    (2, 1, 3),
    (2, 2, 3, 2),
    (4, 4),
    (6,),
    (3, 3),
]
EMPTY = [(0,), (3, 0), (0, 4), (2, 0, 3)]


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def extent(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def strides(rng: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of one of many kinds: dense, of another order, with gaps, expanded, overlapping."""
    kind = rng.choice("dense dense order gaps expanded overlapping channels".split())
    stride = list(_dense(shape))
    if kind == "order" and len(shape) > 1:
        order = rng.sample(range(len(shape)), len(shape))
        dense = _dense(tuple(shape[k] for k in order))
        for k, step in zip(order, dense, strict=True):
            stride[k] = step
    elif kind == "channels" and len(shape) == 4:
        _, c, h, w = shape
        stride = [h * w * c, 1, w * c, c]
    elif kind == "gaps":
        factor = rng.choice([2, 3])
        stride = [step * factor for step in stride]
    elif kind == "expanded" and shape:
        stride[rng.randrange(len(shape))] = 0
    elif kind == "overlapping" and shape:
        stride[rng.randrange(len(shape))] = 1
    # torch's fake tensors do not keep the step of a dimension of one element as its operators do
    return tuple(step if n != 1 else own for n, step, own in zip(shape, stride, _dense(shape), strict=True))


def draw_inputs(rng: random.Random, train: bool) -> tuple[tuple[Memory, ...], tuple[Argument, ...]]:
    """One to four windows of one to three memories."""
    memories: list[Memory] = []
    arguments: list[Argument] = []
    for _ in range(rng.choice([1, 2, 2, 3])):
        dtype = rng.choice(DTYPES) if rng.random() < 0.45 else rng.choice(FLOATS)
        windows = []
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            shape = rng.choice(EMPTY) if rng.random() < 0.06 else rng.choice(SHAPES)
            stride = strides(rng, shape)
            windows.append((shape, stride, rng.choice([0, 0, 0, 1, 3])))
        size = max(extent(shape, stride) + offset for shape, stride, offset in windows) + rng.choice([0, 0, 2])
        grad = train and dtype.startswith(("float", "bfloat")) and rng.random() < 0.8
        memories.append(Memory(dtype, size, grad, grad and rng.random() < 0.4))
        arguments += [Argument(len(memories) - 1, *window) for window in windows]
    rng.shuffle(arguments)
    return tuple(memories), tuple(arguments[:5])
