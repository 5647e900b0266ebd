"""Memory layouts that libraries are fast in: channels-last around convolutions, aligned rows around matmuls.

Eager execution lays tensors out as each operator happens to; a planned graph may choose. A convolution on an NVIDIA GPU
works on channels-last tensors, and transposes before and after when it is given others. A matmul whose rows do not
start on multiples of 16 bytes (a vocabulary of 50257) runs several times slower, and loops over such rows cannot load
vectors. So values between operators get the layout that the library wants, and it spreads along pointwise operators as
it does in eager execution. A convolution that is a matrix product, or one for each group of channels, but for the
layout of its image becomes that. What the caller sees keeps eager's layout: a copy at the border.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import getitem, mul
from typing import Any

import torch
from torch.fx import GraphModule, Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.convolution_forms.depthwise import compute_depthwise, is_own_depthwise
from optfuse.compiler.frontend.convolution_forms.grouped_products import mixes_groups, multiply_groups
from optfuse.compiler.frontend.convolution_forms.patches import SHORTEST_ROW, VECTOR_BYTES, is_patches, multiply_patches
from optfuse.compiler.frontend.convolution_forms.weight_gradients import compute_weights, has_slow_weights
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import BY_PLACE, VIEWS, copied, fake, insert, with_graph
from optfuse.compiler.frontend.layouts.aligned_products import align_product, products_to_align
from optfuse.compiler.frontend.layouts.attention_gradients import gradients_of_attention, tokens_outside
from optfuse.compiler.frontend.layouts.channels_last import (
    CHANNELS_LAST,
    CONVOLUTIONS,
    RELU_TOO,
    as_channels_last,
    channels_last_convolutions,
    is_channels_last,
    is_images,
    laid_out,
)
from optfuse.compiler.frontend.passes.matmuls import take_out_biases
from optfuse.compiler.frontend.torch_internals.torch_bridge import TO_COPY, OpOverload, is_mutating, operator_name
from optfuse.compiler.frontend.torch_internals.torch_fakes import fake_result, fake_strided
from optfuse.compiler.frontend.torch_internals.torch_sizes import hint_of, is_symbolic

aten = torch.ops.aten

Stride = tuple[int, ...]

#: Rows of matmul operands start on multiples of this many bytes, a sector group of the L2 cache.
ROW_BYTES = 128
#: Smaller tensors are not worth padding.
LEAST_ELEMENTS = 1 << 18
#: With fewer terms a dot product, the copy back to eager's layout costs more than the padding saves.
SHORTEST_DOT = 128
#: Multiply-adds and rows of a matmul for it to be done in several, at least.
LEAST_PRODUCT = 1 << 30
LEAST_ROWS = 1024
#: With fewer products for each of its elements, an input costs more to copy than aligned rows save.
LEAST_USES = 256
#: Operators of these namespaces read a tensor by its indices, wherever its elements lie.
_LAYOUT_FREE = frozenset({"aten", "prims", "optfuse"})
#: The key under which a node's ``meta`` says that its layout is not the traced one.
_RELAID = "optfuse_relaid"

#: What makes weights in any layout.
_MADE_WEIGHTS = frozenset(
    {
        *(torch.ops.optfuse.norm_weight.default, torch.ops.optfuse.resize_groups.default, TO_COPY),
        *(aten.clone.default, aten.flip.default, aten.constant_pad_nd.default),
    }
)
#: The arguments that are images, where that is not the first alone.
_IMAGES: dict[Any, tuple[int, ...]] = {aten.convolution_backward.default: (0, 1), RELU_TOO: (0, 3)}
#: The argument that is the weights, where that is not the second.
_WEIGHT: dict[Any, int] = {aten.convolution_backward.default: 2}
_MATMULS = {aten.mm.default: 0, aten.addmm.default: 1, aten.bmm.default: 0, aten.baddbmm.default: 1}


def choose_layouts(captured: Captured, given: Mapping[str, Stride] | None = None) -> Captured:
    """The same graph with other strides in its nodes' fake values.

    Args:
        captured: A normalized graph. Its visible outputs keep their strides: ``Captured.strides`` says which those are.
        given: Strides of placeholders that differ from the traced ones: values that a forward graph kept in its own
            layout.
    """
    convolutions = channels_last_convolutions(captured.graph)
    weights = {node.name for node in captured.graph.graph.nodes if node.name in convolutions and has_slow_weights(node)}
    products = products_to_align(captured.graph)
    asked = {node.name: _aligned_stride for node in _padded_nodes(captured, products)}
    asked |= dict.fromkeys(gradients_of_attention(captured.graph), tokens_outside)
    rewritten = dict(_rewritten(captured.graph))
    given = {} if given is None else given
    ragged = {node.name for node in captured.placeholders if node.name not in given and _worth_a_copy(node)}
    if not (convolutions or asked or rewritten or products or given or ragged):
        return captured
    before = {node.name: node.meta.get("val") for node in captured.graph.graph.nodes}
    graph = copied(captured.graph)
    asked |= dict.fromkeys(_copy_inputs(graph, ragged), _aligned_stride)
    with_zeros: dict[tuple[Node, tuple[int, ...]], Node] = {}
    places = _counted_places(graph)
    for node in list(graph.graph.nodes):
        value = fake(node)
        if node.op == "placeholder" and value is not None and node.name in given:
            _relay(node, _strided(value, given[node.name]))
        elif node.target is getitem:
            _relay(node, node.args[0].meta["val"][node.args[1]])
        elif node.name in rewritten:
            _take_over(rewritten[node.name](node))
            if node.name in convolutions:  # a part of a gradient stays the library's
                _propagate(node, channels_last=True, images=True)
        elif node.name in products:
            _relay(node, align_product(node, with_zeros))
        elif node.op == "call_function" and isinstance(node.target, OpOverload) and not is_mutating(node.target):
            _propagate(node, channels_last=node.name in convolutions, images=bool(convolutions))
            _take_over(compute_weights(node) if node.name in weights else {})
            if node.name in asked:
                _relay(node, _strided(node.meta["val"], asked[node.name](node.meta["val"])))
        if node.name in places and not _as_traced(node):
            _restore(node, before[node.name])
    if multiply_patches in rewritten.values():
        take_out_biases(graph)
    chosen = with_graph(captured, graph)
    return replace(chosen, strides={**_promised(chosen, before), **captured.strides})


def _take_over(values: Mapping[Node, torch.Tensor]) -> None:
    """Give nodes that a rewrite has changed their new fake values."""
    for node, value in values.items():
        _relay(node, value)


def _rewritten(graph: GraphModule) -> Iterator[tuple[str, Callable[[Node], dict[Node, torch.Tensor]]]]:
    """Convolutions that become other operators: their names, and what turns each into those."""
    for node in graph.graph.nodes:
        if is_patches(node):
            yield node.name, multiply_patches
        elif mixes_groups(node):
            yield node.name, multiply_groups
        elif is_own_depthwise(node):
            yield node.name, compute_depthwise


def _promised(captured: Captured, before: Mapping[str, Any]) -> dict[int, Stride]:
    """Eager's strides of the outputs that the caller sees and that would now leave in others."""
    seen = _visible(captured)
    found: dict[int, Stride] = {}
    for position, node in enumerate(captured.outputs):
        if isinstance(node, Node) and node in seen and isinstance(before.get(node.name), torch.Tensor):
            eager, now = before[node.name].stride(), node.meta["val"].stride()
            if not _same(node.meta["val"].shape, eager, now):
                found[position] = tuple(eager)
    return found


def _visible(captured: Captured) -> set[Node]:
    """What reaches the caller."""
    chosen = (node for k, node in enumerate(captured.outputs) if captured.visible is None or k in captured.visible)
    return {node for node in chosen if isinstance(node, Node)}


# --- one node at a time


def _propagate(node: Node, *, channels_last: bool, images: bool) -> None:
    """Give a node the fake value that it has with its arguments' present layouts.

    ``channels_last``: it is a convolution to be laid out so; ``images``: the graph has such convolutions.
    """
    if channels_last:
        _make_channels_last(node.args[_WEIGHT.get(node.target, 1)])
        for k in (*_IMAGES.get(node.target, (0,)), _WEIGHT.get(node.target, 1)):
            _ask_channels_last(node, k)
    elif all(_as_traced(source) for source in node.all_input_nodes) and not images:
        return
    try:
        value = fake_result(node.target, node.args, node.kwargs, like=node.meta.get("val"))
    except (RuntimeError, ValueError):  # a view that these strides do not allow: reshape
        if node.target not in VIEWS and node.target is not aten._unsafe_view.default:  # noqa: SLF001
            raise
        source: Any = node.args[0]
        contiguous = insert(node.graph, node, aten.clone.default, (source,), {"memory_format": torch.contiguous_format})
        node.args = (contiguous, *node.args[1:])
        value = fake_result(node.target, node.args, node.kwargs, like=node.meta.get("val"))
    if channels_last:
        value = _convolved(node, value)
    elif images:
        value = laid_out(node, value)
    _relay(node, value)


def _relay(node: Node, value: Any) -> None:
    """Give a node another fake value, and remember that its layout is no longer the traced one."""
    if not _same_layouts(value, node.meta.get("val")):
        node.meta = {**node.meta, "val": value, _RELAID: True}


def _counted_places(graph: GraphModule) -> set[str]:
    """Nodes whose memory is read by place: through as_strided, or by operators that are not PyTorch's own."""
    found: set[str] = set()
    for node in graph.graph.nodes:
        if node.target in BY_PLACE:
            found.add(_base(node.args[0]).name)
        elif isinstance(node.target, OpOverload) and node.target.namespace not in _LAYOUT_FREE:
            found |= {_base(source).name for source in node.all_input_nodes}
    return found


def _restore(node: Node, traced: torch.Tensor) -> None:
    """Let all that read a node read a copy in the traced layout."""
    copy = insert(node.graph, node.next, aten.clone.default, (node,))
    copy.meta = {**copy.meta, "val": _strided(traced, tuple(traced.stride()))}
    node.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)


def _as_traced(node: Node) -> bool:
    return not node.meta.get(_RELAID, False)


def _make_channels_last(weight: Any) -> None:
    """Let weights that loops make for convolutions alone be channels-last: the library would copy them, and slowly."""
    value = fake(weight) if isinstance(weight, Node) else None
    if value is None or weight.target not in _MADE_WEIGHTS or not is_images(value):
        return
    if all(user.target in CONVOLUTIONS for user in weight.users):
        _relay(weight, as_channels_last(value))


def _ask_channels_last(node: Node, k: int) -> None:
    """Let an argument be channels-last: as it is, or as a copy."""
    source = node.args[k]
    value = fake(source) if isinstance(source, Node) else None
    if value is None or is_channels_last(value):
        return
    wanted = {"memory_format": CHANNELS_LAST[value.dim()]}
    made = [user for user in source.users if user.target is aten.clone.default and user.kwargs == wanted]
    copy = made[0] if made and made[0] < node else insert(node.graph, node, aten.clone.default, (source,), wanted)
    copy.meta[_RELAID] = True
    node.args = (*node.args[:k], copy, *node.args[k + 1 :])


def _convolved(node: Node, value: Any) -> Any:
    """What a convolution of channels-last tensors returns on a GPU, whatever this machine's own would."""
    if isinstance(value, torch.Tensor):
        return as_channels_last(value)
    images, weights, bias = value
    return type(value)((as_channels_last(images), as_channels_last(weights), bias))


# --- who is concerned


def _padded_nodes(captured: Captured, products: Collection[str]) -> frozenset[Node]:
    """Values that matmuls, other than ``products``, read or write whose rows do not start on whole vectors."""
    outputs = {node for node in captured.outputs if isinstance(node, Node)}
    seen = _visible(captured)
    found: set[Node] = set()
    for node in captured.graph.graph.nodes:
        if node.target not in _MATMULS or node.name in products:
            continue
        first = _MATMULS[node.target]
        operands = [_base(operand) for operand in node.args[first : first + 2] if isinstance(operand, Node)]
        left = fake(node.args[first])
        escapes = node in outputs or any(user in outputs for user in _through_views(node))
        if not escapes or (left is not None and hint_of(left.shape[-1]) >= SHORTEST_DOT and not _in_place(node, seen)):
            operands.append(node)
        found.update(operand for operand in operands if _ragged(operand))
    return frozenset(found)


def _worth_a_copy(node: Node) -> bool:
    """Whether an input's rows do not start on whole vectors, and matmuls use each element often enough to copy it.

    So it is with the gradient of a language model's scores, when the loss is taken outside of the compiled model.
    """
    if not _is_ragged(fake(node)):
        return False
    readers = {user for alias in (node, *_through_views(node)) for user in alias.users if user.target in _MATMULS}
    return sum(_uses(reader) for reader in readers) >= LEAST_USES


def _uses(matmul: Node) -> int:
    """How many products of a matmul each element of its larger operand takes part in, at least."""
    first = _MATMULS[matmul.target]
    a, b = (fake(operand) for operand in matmul.args[first : first + 2])
    return 0 if a is None or b is None else min(hint_of(a.shape[-2]), hint_of(b.shape[-1]))


def _copy_inputs(graph: GraphModule, names: Collection[str]) -> list[str]:
    """Let all that read some inputs, the caller excepted, read copies of them; the copies' names are returned."""
    found = []
    placeholders = graph.graph.find_nodes(op="placeholder")
    for node in placeholders:
        if node.name in names:
            copy = insert(graph.graph, placeholders[-1].next, aten.clone.default, (node,))
            node.replace_all_uses_with(
                copy, delete_user_cb=lambda user, copy=copy: user is not copy and user.op != "output"
            )
            found.append(copy.name)
    return found


def _in_place(node: Node, seen: set[Node]) -> bool:
    """Whether only outputs use a matmul's result, some of them ``seen``, and it can be written fast as they want it.

    Code generation does so (``codegen.unaligned_matmul``) for floating-point products whose operands have whole vectors
    along the terms of each sum.
    """
    first = _MATMULS[node.target]
    bias, (a, b) = [fake(x) for x in node.args[:first]], [fake(x) for x in node.args[first : first + 2]]
    if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs or a is None or b is None:
        return False
    if any(x is None or x.dim() != 1 for x in bias) or a.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return False
    (rows, terms), columns = a.shape, b.shape[1]
    many = hint_of(rows * terms * columns) >= LEAST_PRODUCT and hint_of(rows) >= LEAST_ROWS
    views = [user for user in _through_views(node)]
    last = [user for n in (node, *views) for user in n.users if user not in views]
    if not many or seen.isdisjoint((node, *views)) or any(user.op != "output" for user in last):
        return False
    vector = VECTOR_BYTES // a.element_size()  # asked last, since it is a guard where sizes change
    return terms % vector == 0 and a.stride() == (terms, 1) and b.stride() == (1, terms)


def _base(node: Node) -> Node:
    while node.op == "call_function" and (node.target in VIEWS or node.target is aten._unsafe_view.default):  # noqa: SLF001
        node = node.args[0]  # type: ignore[assignment]
    return node


def _through_views(node: Node) -> Iterator[Node]:
    for user in node.users:
        if user.target in VIEWS or user.target is aten._unsafe_view.default:  # noqa: SLF001
            yield user
            yield from _through_views(user)


def _ragged(node: Node) -> bool:
    """Whether a node makes a row-major tensor of long rows that do not start on whole vectors."""
    return node.op == "call_function" and operator_name(node.target) != "" and _is_ragged(fake(node))


def _is_ragged(value: torch.Tensor | None) -> bool:
    """Whether a row-major tensor has long rows that do not start on whole vectors."""
    if value is None or value.dim() < 2 or not value.is_contiguous():
        return False
    row = value.shape[-1]
    if is_symbolic(row):
        return False
    ragged = row * value.element_size() % VECTOR_BYTES != 0
    return ragged and row >= SHORTEST_ROW and hint_of(value.numel()) >= LEAST_ELEMENTS


# --- strides


def _strided(value: torch.Tensor, stride: Stride) -> torch.Tensor:
    return fake_strided(value, stride)


def _aligned_stride(value: torch.Tensor) -> Stride:
    """Row-major, with rows of whole multiples of ``ROW_BYTES``."""
    unit = ROW_BYTES // value.element_size()
    row = -(-value.shape[-1] // unit) * unit
    outer = list(accumulate([row, *reversed(value.shape[1:-1])], mul))
    return (*reversed(outer), 1)


def _same(shape: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    return 0 in shape or all(a == b for n, a, b in zip(shape, one, other, strict=True) if n != 1)


def _same_layouts(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return _same(one.shape, one.stride(), other.stride())
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_same_layouts, one, other))
    return True
