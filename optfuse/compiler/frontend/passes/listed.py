"""The frontend's rewrites by name, in the order in which they run: what each does, and what kind it is.

The kinds are those of ``compiler.simplify.pass_list``. A result shows the frontend's decisions by the library operators
that are called and by the rows that are padded. Stages take graphs of different types, so each runs its own functions;
a test holds them to this list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stage = Literal["trace", "inference", "training", "functional", "normalize", "layout"]


@dataclass(frozen=True, slots=True)
class FrontendPass:
    """A rewrite of the captured graph. ``module`` holds its function, ``stage`` is when it runs, ``says`` one line."""

    name: str
    kind: Literal["normal form", "decision"]
    stage: Stage
    module: str
    says: str


FRONTEND_PASSES: tuple[FrontendPass, ...] = (
    FrontendPass(
        "drop_attention_weights", "decision", "trace", "passes.attention_weights",
        "multi-head attention whose weights nothing reads returns none, in half precision",
    ),
    FrontendPass(
        "recognize_attention", "decision", "trace", "passes.written_attention",
        "two products with a softmax between become one attention call in half precision",
    ),
    FrontendPass(
        "simplify_attention_masks", "decision", "trace", "passes.attention",
        "constant masks of attention that allow everything vanish, and lower-triangular ones become causal",
    ),
    FrontendPass(
        "share_masks", "decision", "trace", "passes.masks",
        "attention masks that are the same for every batch are computed once and broadcast",
    ),
    FrontendPass(
        "sum_bags", "decision", "trace", "passes.bags",
        "bags of equally many rows of a table are sums over rows that loops gather",
    ),
    FrontendPass(
        "norm_channels", "decision", "trace", "passes.instances",
        "instance norms are group norms of one channel a group, which need no copy of channels-last images",
    ),
    FrontendPass(
        "interpolate_by_dimensions", "decision", "trace", "passes.interpolation",
        "linear interpolation is a weighted sum of two gathers along each dimension, whose gradient is a short sum",
    ),
    FrontendPass(
        "choose_by_masks", "decision", "trace", "operators.mask_writes",
        "elements that a mask chooses are written as a choice between old and new ones at each place",
    ),
    FrontendPass(
        "leave_inference_mode", "normal form", "trace", "passes.inference_regions",
        "regions under inference mode are regions without gradients",
    ),
    FrontendPass(
        "attend_with_masks", "decision", "inference", "passes.attention",
        "attention with a mask is one operator in half precision, without gradients",
    ),
    FrontendPass(
        "fuse_activations", "decision", "inference", "passes.epilogues",
        "convolution, batch norm, residual and ReLU become one library call in half precision",
    ),
    FrontendPass(
        "keep_attention_whole", "decision", "training", "passes.attention",
        "attention stays one operator, whatever its arguments",
    ),
    FrontendPass(
        "save_no_lazy_views", "normal form", "training", "passes.lazy_views",
        "conjugation that torch puts off is computed where it stands, before it is decided what is saved",
    ),
    FrontendPass(
        "save_no_seeds", "normal form", "training", "passes.attention_seeds",
        "attention that drops nothing saves no seeds for its gradient",
    ),
    FrontendPass(
        "keep_offsets", "decision", "training", "passes.max_pooling",
        "max-pooling keeps an offset of one byte for its gradient in place of a position of eight",
    ),
    FrontendPass(
        "release_pooled", "decision", "training", "passes.max_pooling",
        "a pooling's gradient looks at a convolution's result that is kept anyway in place of what was pooled",
    ),
    FrontendPass(
        "take_out_biases", "decision", "training", "passes.matmuls",
        "biases of matmuls whose results only loops read are added by the loops",
    ),
    FrontendPass(
        "drop_copies", "decision", "training", "passes.noops",
        "an equal copy of a value is that value, before it is decided what is saved",
    ),
    FrontendPass(
        "derive_relu_masks", "decision", "training", "passes.relu_masks",
        "a ReLU's gradient looks at the sign of what the backward graph reads anyway in place of the ReLU's result",
    ),
    FrontendPass(
        "seed_draws", "decision", "training", "passes.draws",
        "uniform and normal draws follow from one seed a step, so that either graph can make them again",
    ),
    FrontendPass(
        "min_cut_partition", "decision", "training", "torch_internals.torch_bridge",
        "torch's minimum cut decides what the forward graph saves and what the backward graph recomputes",
    ),
    FrontendPass(
        "recompute_expanded", "decision", "training", "passes.recompute_expanded",
        "a saved value that spreads small ones out is made again by the backward graph",
    ),
    FrontendPass(
        "drop_effect_tokens", "normal form", "functional", "passes.effects",
        "operators with side effects are called directly, without the tokens that order them",
    ),
    FrontendPass(
        "isolate_opaque", "normal form", "normalize", "passes.opaque",
        "nodes with subgraphs or objects among their arguments become operators of their own",
    ),
    FrontendPass(
        "drop_assertions", "normal form", "normalize", "passes.noops",
        "checks that hold by construction for static shapes are dropped",
    ),
    FrontendPass(
        "materialize_lazy_views", "normal form", "normalize", "passes.lazy_views",
        "negation and conjugation that torch puts off are computed where they stand",
    ),
    FrontendPass(
        "compute_parts", "decision", "normalize", "passes.complex_numbers",
        "arithmetic of complex numbers is done on their real and imaginary parts, by loops",
    ),
    FrontendPass(
        "expand_items", "decision", "normalize", "passes.items",
        "a tensor filled with an element of another becomes an expansion of that element",
    ),
    FrontendPass(
        "merge_duplicates", "decision", "normalize", "passes.duplicates",
        "nodes with the same operator and arguments are computed once",
    ),
    FrontendPass(
        "fold_constants", "decision", "normalize", "passes.constants",
        "what depends on no input is computed at capture",
    ),
    FrontendPass(
        "gather_known_sums", "decision", "normalize", "passes.known_places",
        "sums at places that are constants, from zeros on, are sums of few gathered values",
    ),
    FrontendPass(
        "separate_depths", "decision", "normalize", "passes.depth_multipliers",
        "depthwise convolutions that make a few channels of each one are several of them, in half precision",
    ),
    FrontendPass(
        "join_groups", "decision", "normalize", "passes.few_groups",
        "convolutions of few groups are one of all channels, with zeros between groups, in half precision",
    ),
    FrontendPass(
        "ease_convolutions", "decision", "normalize", "passes.convolutions",
        "convolutions and their gradients take the form in which libraries are fast, in half precision",
    ),
    FrontendPass(
        "pad_channels", "decision", "normalize", "passes.ragged_channels",
        "zeros behind the channels of convolutions make them whole vectors, in half precision",
    ),
    FrontendPass(
        "widen_groups", "decision", "normalize", "passes.groups",
        "zeros widen the groups of grouped convolutions to a power of two of channels, in half precision",
    ),
    FrontendPass(
        "separate_groups", "decision", "normalize", "passes.wide_groups",
        "grouped convolutions of more than 128 channels a group are one convolution for each group, in half precision",
    ),
    FrontendPass(
        "remove_noops", "decision", "normalize", "passes.noops",
        "aliases, copies to the same layout and views to the same shape are dropped",
    ),
    FrontendPass(
        "contract_products", "decision", "normalize", "passes.contractions",
        "sums of products of tensors that are spread out over each other's dimensions are matmuls",
    ),
    FrontendPass(
        "fuse_matmul_activations", "decision", "normalize", "passes.matmuls",
        "ReLU or GELU of a matmul that another matmul reads goes into the first, in half precision",
    ),
    FrontendPass(
        "split_cached_attention", "decision", "normalize", "passes.cached_attention",
        "attention of a few queries over many keys, in half precision, splits the keys and repeats no heads",
    ),
    FrontendPass(
        "sum_over_experts", "decision", "normalize", "passes.experts",
        "grouped matmuls of few rows are sums over the weights of each row's expert, or our call of small tiles",
    ),
    FrontendPass(
        "join_products", "decision", "normalize", "passes.joint_products",
        "products of the same few rows and several weights are one call that takes one launch, in half precision",
    ),
    FrontendPass(
        "join_reductions", "decision", "normalize", "passes.collectives",
        "the sum of two collectives' results is one collective's, of the sum of what both send",
    ),
    FrontendPass(
        "coalesce_collectives", "decision", "normalize", "passes.collectives",
        "small collectives of one kind and group that can start together are one call",
    ),
    FrontendPass(
        "reduce_in_place", "decision", "normalize", "passes.collectives",
        "an all-reduce of a value that has no other reader works in that value's memory",
    ),
    FrontendPass(
        "compute_host_numbers_on_device", "decision", "normalize", "passes.host_numbers",
        "arithmetic on numbers in the host's memory is done by the kernels that read its results",
    ),
    FrontendPass(
        "choose_layouts", "decision", "layout", "layouts.layouts",
        "convolutions are channels-last, rows of matmuls whole vectors; patches and groups of pixels become matmuls",
    ),
    FrontendPass(
        "compute_depthwise", "decision", "layout", "convolution_forms.depthwise",
        "depthwise convolutions over windows that libraries are slow at, and gradients of them, run in our kernels",
    ),
    FrontendPass(
        "compute_weights", "decision", "layout", "convolution_forms.weight_gradients",
        "gradients of convolutions' weights that libraries are slow at run in a kernel of ours, in half precision",
    ),
    FrontendPass(
        "align_product", "decision", "layout", "layouts.aligned_products",
        "operands of products on tensor cores get zeros up to whole vectors where the library is much faster then",
    ),
    FrontendPass(
        "update_in_place", "decision", "layout", "passes.in_place",
        "updates of some places of a tensor are written in it where every reader of the old value can come first",
    ),
)  # fmt: skip
