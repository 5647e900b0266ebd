"""Layouts that libraries want, and eager's at every border."""

from copy import deepcopy

import pytest
import torch
from torch import nn

import optfuse
from optfuse.compiler.frontend.aot_autograd.aot import as_traced
from optfuse.compiler.frontend.dynamo_backend import make_backend
from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.frontend.tracing.training import capture_training
from tests.compiler.frontend.running import capture_and_compare
from tests.oracle.judging import OPTIONS

aten = torch.ops.aten


class Net(nn.Module):
    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1, groups=groups)

    def forward(self, x):
        y = torch.relu(self.norm(self.first(x)))
        return self.second(y) + y


class Head(nn.Module):
    def __init__(self, vocabulary: int = 1003) -> None:
        super().__init__()
        self.head = nn.Linear(256, vocabulary, bias=False)

    def forward(self, x, labels):
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def targets(captured, target):
    return [node for node in captured.graph.graph.nodes if node.target is target]


def channels_last(node) -> bool:
    return node.meta["val"].is_contiguous(memory_format=torch.channels_last)


def test_values_between_convolutions_are_channels_last_and_outputs_are_not():
    captured = capture(Net().eval(), (torch.randn(2, 3, 8, 8),))
    assert len(targets(captured, aten.convolution.default)) == 2
    for node in captured.graph.graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and value.dim() == 4 and value.shape[0] == 2:
            assert channels_last(node), node.name
    ((position, stride),) = captured.strides.items()
    assert (position, stride) == (0, (1024, 64, 8, 1))


@pytest.mark.parametrize(("groups", "is_fast"), [(1, True), (4, True), (8, False), (16, True)])
def test_convolutions_whose_groups_are_slow_channels_last_keep_the_traced_layout(groups, is_fast):
    captured = capture(Net(groups=groups).eval(), (torch.randn(2, 3, 8, 8),))
    assert bool(captured.strides) == is_fast
    for node in targets(captured, aten.convolution.default):
        assert channels_last(node) == is_fast
        assert not is_fast or channels_last(node.args[1])


@pytest.mark.parametrize(("channels", "groups", "is_fast"), [(24, 1, True), (48, 2, False), (12, 4, False)])
def test_groups_of_a_number_of_channels_that_is_no_power_of_two_are_slow(channels, groups, is_fast):
    net = nn.Sequential(nn.Conv2d(8, channels, 1), nn.Conv2d(channels, channels, 3, groups=groups)).eval()
    captured = capture(net, (torch.randn(2, 8, 8, 8),))
    assert [channels_last(node) for node in targets(captured, aten.convolution.default)] == [is_fast, is_fast]


@pytest.mark.parametrize(("channels", "is_fast"), [(16, False), (64, True)])
def test_windows_that_our_kernels_compute_want_many_channels_last(channels, is_fast):
    net = nn.Sequential(nn.Conv2d(8, channels, 1), nn.Conv2d(channels, channels, (17, 1), groups=channels)).eval()
    captured = capture(net, (torch.randn(2, 8, 32, 8),))
    calls = targets(captured, aten.convolution.default) + targets(captured, torch.ops.optfuse.depthwise.default)
    assert [channels_last(node) for node in calls] == [is_fast, is_fast]


class Video(nn.Module):
    """Two convolutions of (N, C, D, H, W): the first is of three channels."""

    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv3d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm3d(16)
        self.second = nn.Conv3d(16, 16, 3, padding=1, groups=groups, bias=False)

    def forward(self, x):
        y = torch.relu(self.norm(self.first(x)))
        return self.second(y) + y


@pytest.mark.parametrize(("groups", "is_fast"), [(1, True), (16, False)])
def test_videos_are_channels_last_but_for_depthwise_convolutions(groups, is_fast):
    captured = capture(Video(groups).eval(), (torch.randn(2, 3, 4, 8, 8),))
    assert captured.strides == ({0: (4096, 256, 64, 8, 1)} if is_fast else {})
    for node in targets(captured, aten.convolution.default):
        assert node.meta["val"].is_contiguous(memory_format=torch.channels_last_3d) == is_fast


def test_videos_of_three_channels_get_zeros_beside_them():
    forward, backward = capture_training(Video().bfloat16(), (torch.randn(2, 3, 4, 16, 16).bfloat16(),))
    channels = [node.args[1].meta["val"].shape[1] for node in targets(forward, aten.convolution.default)]
    gradients = [node.args[2].meta["val"].shape[1] for node in targets(backward, aten.convolution_backward.default)]
    assert (channels, sorted(gradients)) == ([8, 16], [8, 16])


def test_training_of_videos():
    """No further from float64 than eager execution in bfloat16, in its layouts."""
    torch.manual_seed(0)
    net, x = Video().bfloat16(), torch.randn(2, 3, 4, 8, 8).bfloat16()
    step = optfuse.optimize(net, (x,), train=True, options=OPTIONS).compile()
    seed = torch.randn(net(x).shape)
    out, eager = step(x), net(x)
    ours, theirs = (torch.autograd.grad((y.float() * seed).sum(), list(net.parameters())) for y in (out, eager))
    net.double()
    exact = torch.autograd.grad((net(x.double()) * seed).sum(), list(net.parameters()))
    assert out.stride() == eager.stride()
    for a, b, c in zip(ours, theirs, exact, strict=True):
        assert a.stride() == b.stride()
        assert (a - c).norm() <= 1.5 * (b - c).norm() + 0.01 * c.norm()


def test_weights_are_copied_by_loops_for_both_halves_of_a_step():
    forward, backward = capture_training(Net(), (torch.randn(2, 3, 8, 8),))
    (_, second), gradients = (
        targets(forward, aten.convolution.default),
        targets(backward, aten.convolution_backward.default),
    )
    assert channels_last(second.args[1])
    assert all(channels_last(node.args[2]) for node in gradients)


def test_a_backward_graph_takes_what_the_forward_graph_kept_as_it_lies():
    forward, backward = capture_training(Net(), (torch.randn(2, 3, 8, 8),))
    laid = {node.name: node.meta["val"].stride() for node in backward.placeholders}
    names = {node.name: node for node in forward.outputs if isinstance(node, torch.fx.Node)}
    kept = [name for name in laid if name in names]
    assert kept
    for name in kept:
        position = forward.outputs.index(names[name])
        assert laid[name] == forward.strides.get(position, names[name].meta["val"].stride())
    assert any(channels_last(names[name]) and names[name].meta["val"].dim() == 4 for name in kept)


def test_rows_of_a_ragged_vocabulary_are_padded_where_nobody_sees_them():
    head = Head()
    args = (torch.randn(2, 300, 256), torch.randint(1003, (2, 300)))
    forward, backward = capture_training(head, args)
    (matmul,) = targets(forward, aten.mm.default)
    assert matmul.meta["val"].stride() == (1024, 1)  # 1003 floats up to whole multiples of 128 bytes
    gradients = [node for node in targets(backward, aten.mm.default) if 1003 in node.args[0].meta["val"].shape]
    assert gradients
    for node in gradients:
        assert 1024 in node.args[0].meta["val"].stride()


def test_a_padded_matmul_that_the_caller_sees_is_copied():
    captured = capture(nn.Linear(256, 1003, bias=False), (torch.randn(600, 256),))
    (matmul,) = targets(captured, aten.mm.default)
    assert matmul.meta["val"].stride() == (1024, 1)
    assert captured.strides == {0: (1003, 1)}


def test_products_of_half_types_that_only_the_caller_sees_are_written_as_he_sees_them():
    args = (torch.randn(2, 1024, 1024, dtype=torch.bfloat16),)
    captured = capture(nn.Linear(1024, 1003, dtype=torch.bfloat16), args)
    (matmul,) = targets(captured, aten.addmm.default)
    assert matmul.meta["val"].stride() == (1003, 1)
    assert not captured.strides
    once_more = nn.Sequential(nn.Linear(1024, 1003, dtype=torch.bfloat16), nn.ReLU())
    (matmul,) = targets(capture(once_more, args), aten.mm.default)
    assert matmul.meta["val"].stride() == (1024, 1)


def test_a_view_that_the_chosen_layout_does_not_allow_is_of_a_copy():
    class Flat(Net):
        def forward(self, x):
            return super().forward(x).view(2, -1) * 2

    model = Flat().eval()
    x = torch.randn(2, 3, 8, 8)
    captured = capture(model, (x,))
    formats = [node.kwargs.get("memory_format") for node in targets(captured, aten.clone.default)]
    assert torch.contiguous_format in formats


class Scores(nn.Module):
    """A language model's head whose loss is taken outside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, 1003, bias=False)

    def forward(self, x):
        return self.head(x.tanh())


@pytest.mark.spread(2)
@pytest.mark.parametrize(("width", "copied"), [(512, True), (64, False)])
def test_gradients_that_come_in_ragged_rows_are_copied_where_matmuls_use_them_often(width, copied):
    model, graphs = Scores(width), []

    def compile_graph(captured):
        graphs.append(captured)
        return as_traced(captured)

    x = torch.randn(2, 256, width, requires_grad=True)
    torch.compile(model, backend=make_backend(compile_graph))(x).square().mean().backward()
    backward = graphs[1]
    (tangent,) = [node for node in backward.placeholders if node.name.startswith("tangents")]
    copies = [node for node in targets(backward, aten.clone.default) if node.args[0] is tangent]
    assert [node.meta["val"].stride() for node in copies] == ([(256 * 1024, 1024, 1)] if copied else [])
    y = x.detach().clone().requires_grad_()
    model(y).square().mean().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_windows_are_cut_from_results_of_a_graph_that_runs_as_traced():
    """Their places are those of eager execution's layout, whatever the graph's own operators return."""

    class Windows(Net):
        def forward(self, x):
            y = super().forward(x)
            return y.view(-1), y[:, 3:7, ::2], y.view(2, 4, 4, 8, 8)

    torch.manual_seed(0)
    model, x = Windows().eval(), torch.randn(2, 3, 8, 8)
    torch.compiler.reset()
    with torch.no_grad():
        found = torch.compile(model, backend=make_backend(as_traced))(x)
        for ours, eager in zip(found, model(x), strict=True):
            assert ours.stride() == eager.stride()
            torch.testing.assert_close(ours, eager)


class Gates(nn.Module):
    """A channels-last image beside a small one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Conv2d(8, 16, 3), nn.Conv2d(18, 8, 3)

    def forward(self, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        return self.after(torch.cat([self.before(x).relu(), gates.sin()], 1))


def test_what_is_concatenated_is_laid_out_as_most_of_it() -> None:
    x, gates = torch.randn(2, 8, 10, 12), torch.randn(2, 2, 8, 10)
    captured = capture_and_compare(Gates().eval(), (x, gates))
    (joined,) = captured.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)
    assert joined.meta["val"].is_contiguous(memory_format=torch.channels_last)


class Twice(nn.Module):
    """Two convolutions of one image."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Conv2d(8, 8, 3, bias=False), nn.Conv2d(8, 8, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + self.other(x)


def test_one_copy_serves_all_convolutions_of_an_image() -> None:
    captured = capture_and_compare(Twice().eval(), (torch.randn(2, 8, 10, 12),))
    one, other = (node.args[0] for node in targets(captured, aten.convolution.default))
    assert one is other
    assert one.target is aten.clone.default


class Split(nn.Module):
    """The sum of two halves of an image's channels, as of split attention."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Conv2d(8, 16, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.before(x).unflatten(1, (2, 8)).sum(1))


def test_a_sum_of_parts_is_laid_out_as_they_are() -> None:
    captured = capture_and_compare(Split().eval(), (torch.randn(2, 8, 10, 12),))
    (total,) = targets(captured, aten.sum.dim_IntList)
    assert channels_last(total)


class Windows(nn.Module):
    """Attention within windows of tokens, whose gradient comes from a loop that puts the windows where they were."""

    def __init__(self):
        super().__init__()
        self.project, self.bias = nn.Linear(32, 96), nn.Parameter(torch.zeros(8, 8))

    def forward(self, x):
        q, k, v = self.project(x).view(2, 8, 4, 3, 2, 16).permute(3, 0, 4, 2, 1, 5)
        out = nn.functional.scaled_dot_product_attention(q, k, v, self.bias)
        return out.permute(0, 3, 2, 1, 4).reshape(2, 32, 32) * x


def test_gradients_of_attention_lie_with_tokens_outside_of_heads():
    """Libraries copy them otherwise; the loop that makes one writes it so."""
    model, x = Windows().to(torch.bfloat16), torch.randn(2, 32, 32).to(torch.bfloat16)
    _, backward = capture_training(model, (x,))
    [call] = targets(backward, torch.ops.optfuse.attention_backward.default)
    gradient = call.args[0].meta["val"]
    assert gradient.transpose(1, 2).is_contiguous()
    step = optfuse.optimize(model, (x,), train=True, options=OPTIONS).compile()
    exact = deepcopy(model).double()
    ours, eager, truth = (
        torch.autograd.grad(run(x.to(dtype)).square().sum(), list(net.parameters()))
        for run, net, dtype in ((step, model, x.dtype), (model, model, x.dtype), (exact, exact, torch.float64))
    )
    for found, theirs, wanted in zip(ours, eager, truth, strict=True):
        assert (found - wanted).norm() <= 1.5 * (theirs - wanted).norm() + 4e-3 * wanted.norm()


def test_a_batch_of_as_many_images_as_channels_is_in_the_range():
    """Whether an operand is spread out over the images is asked of their formulas, not of the numbers."""
    net = nn.Sequential(nn.Conv2d(8, 16, 1), nn.GELU(), nn.Conv2d(16, 4, 1)).to(torch.bfloat16).eval()
    fast = torch.compile(net, backend="optfuse", dynamic=True)
    before = len(optfuse.compiled_graphs())
    for batch in (3, 4, 8, 16):
        x = torch.randn(batch, 8, 6, 7).to(torch.bfloat16)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), net(x), rtol=0.05, atol=0.05)
    assert len(optfuse.compiled_graphs()) == before + 1
