"""Models of packages other than transformers, timm and torchvision, as ``foreign_models.py`` has them of those.

A name is ``PACKAGE:MODEL``, as ``diffusers:flux``; ``PACKAGES`` has all of them, each with a function of how much is
asked for that returns a model with random weights and its inputs by name or number. Sizes are those of models that are
in use; of transformers with many equal blocks there are as many as ``--layers`` says. Images are 224 or 256 pixels
wide and latents 64, unless their model is made for others; volumes have 96 voxels on each side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

Made = tuple[Any, dict[str, Any]]


@dataclass(frozen=True)
class Asked:
    """How many blocks a deep model has, how many samples there are, and how many tokens in each."""

    layers: int
    batch: int
    length: int


def _latents(batch: int, channels: int = 4, size: int = 64) -> Any:
    import torch

    return torch.randn(batch, channels, size, size)


def _steps(batch: int) -> Any:
    """The numbers of the steps of a diffusion at which samples are."""
    import torch

    return torch.randint(0, 1000, (batch,))


def _words(batch: int, length: int, width: int) -> Any:
    """A prompt's tokens, as a text encoder gives them."""
    import torch

    return torch.randn(batch, length, width)


def _diffusers(name: str, *positional: Any, **named: Any) -> Any:
    return getattr(import_module("diffusers"), name)(*positional, **named)


def _unet2d(asked: Asked) -> Made:
    blocks = ("DownBlock2D",) * 4 + ("AttnDownBlock2D", "DownBlock2D")
    ups = ("UpBlock2D", "AttnUpBlock2D") + ("UpBlock2D",) * 4
    widths = (128, 128, 256, 256, 512, 512)
    model = _diffusers("UNet2DModel", 256, block_out_channels=widths, down_block_types=blocks, up_block_types=ups)
    return model, {"0": _latents(asked.batch, 3, 256), "1": _steps(asked.batch)}


def _unet2d_condition(asked: Asked) -> Made:
    model = _diffusers("UNet2DConditionModel", cross_attention_dim=768)  # Stable Diffusion 1.5
    return model, {"0": _latents(asked.batch), "1": _steps(asked.batch), "2": _words(asked.batch, 77, 768)}


def _unet1d(asked: Asked) -> Made:
    import torch

    model = _diffusers("UNet1DModel", extra_in_channels=256, block_out_channels=(128, 256, 512))
    return model, {"0": torch.randn(asked.batch, 2, 8192), "1": _steps(asked.batch)}


def _unet3d_condition(asked: Asked) -> Made:
    import torch

    batch = max(1, asked.batch // 8)
    frames = torch.randn(batch, 4, 16, 32, 32)
    return _diffusers("UNet3DConditionModel"), {"0": frames, "1": _steps(batch), "2": _words(batch, 77, 1024)}


def _dit(asked: Asked) -> Made:
    import torch

    inputs = {"0": _latents(asked.batch, size=32), "timestep": _steps(asked.batch)}
    model = _diffusers("DiTTransformer2DModel", num_layers=asked.layers, out_channels=8)
    return model, {**inputs, "class_labels": torch.randint(0, 1000, (asked.batch,))}


def _pixart(asked: Asked) -> Made:
    model = _diffusers("PixArtTransformer2DModel", num_layers=asked.layers, sample_size=64, caption_channels=4096)
    words = {"encoder_hidden_states": _words(asked.batch, 120, 4096)}
    return model, {"0": _latents(asked.batch), **words, "timestep": _steps(asked.batch)}


def _sd3(asked: Asked) -> Made:
    import torch

    sizes = {"num_attention_heads": 24, "caption_projection_dim": 1536, "pos_embed_max_size": 192}
    model = _diffusers("SD3Transformer2DModel", num_layers=asked.layers, **sizes)
    words = {"encoder_hidden_states": _words(asked.batch, 333, 4096)}
    whole = {"pooled_projections": torch.randn(asked.batch, 2048), "timestep": _steps(asked.batch)}
    return model, {"0": _latents(asked.batch, 16), **words, **whole}


def _flux(asked: Asked) -> Made:
    import torch

    batch = max(1, asked.batch // 4)
    model = _diffusers("FluxTransformer2DModel", num_layers=asked.layers, num_single_layers=2 * asked.layers)
    rows, columns = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    places = torch.stack([torch.zeros_like(rows), rows, columns], -1).flatten(0, 1)
    return model, {
        "0": torch.randn(batch, len(places), 64),
        "encoder_hidden_states": _words(batch, 512, 4096),
        "pooled_projections": torch.randn(batch, 768),
        "timestep": torch.rand(batch),
        "img_ids": places,
        "txt_ids": torch.zeros(512, 3),
    }


def _wan(asked: Asked) -> Made:
    import torch

    batch = max(1, asked.batch // 8)
    sizes = {"num_attention_heads": 12, "ffn_dim": 8960}  # Wan 2.1 of 1.3 billion parameters
    inputs = {"0": torch.randn(batch, 16, 5, 60, 104), "1": _steps(batch), "2": _words(batch, 512, 4096)}
    return _diffusers("WanTransformer3DModel", num_layers=asked.layers, **sizes), inputs


def _autoencoder(asked: Asked, name: str, **more: Any) -> Made:
    widths = (128, 256, 512, 512)
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    model = _diffusers(name, block_out_channels=widths, layers_per_block=2, latent_channels=4, **blocks, **more)
    return model, {"0": _latents(asked.batch, 3, 256)}


def _volumes(asked: Asked, channels: int) -> dict[str, Any]:
    import torch

    return {"0": torch.randn(max(1, asked.batch // 4), channels, 96, 96, 96)}


def _monai(name: str, *positional: Any, **named: Any) -> Any:
    return getattr(import_module("monai.networks.nets"), name)(*positional, **named)


def _monai_unet(asked: Asked) -> Made:
    model = _monai("UNet", 3, 1, 2, (16, 32, 64, 128, 256), (2, 2, 2, 2), num_res_units=2, norm="batch")
    return model, _volumes(asked, 1)


def _dynunet(asked: Asked) -> Made:
    kernels, strides = [3] * 5, [1, 2, 2, 2, 2]
    return _monai("DynUNet", 3, 1, 3, kernels, strides, strides[1:], res_block=True), _volumes(asked, 1)


def _smp(asked: Asked, name: str, encoder: str) -> Made:
    model = getattr(import_module("segmentation_models_pytorch"), name)(encoder, encoder_weights=None, classes=21)
    return model, {"0": _latents(2 * asked.batch, 3, 256)}


def _x_transformers(asked: Asked, **options: Any) -> Made:
    import torch

    package = import_module("x_transformers")
    layers = package.Decoder(dim=1024, depth=asked.layers, heads=16, **options)
    tokens = torch.randint(0, 20000, (asked.batch, asked.length))
    return package.TransformerWrapper(num_tokens=20000, max_seq_len=1024, attn_layers=layers), {"0": tokens}


def _vit_pytorch(asked: Asked, module: str, name: str, **options: Any) -> Made:
    model = getattr(import_module(f"vit_pytorch.{module}"), name)(num_classes=1000, **options)
    return model, {"0": _latents(4 * asked.batch, 3, options.get("image_size", 224))}


def _vit_3d(asked: Asked) -> Made:
    import torch

    sizes = {"image_size": 128, "frames": 16, "image_patch_size": 16, "frame_patch_size": 2, "num_classes": 1000}
    model = import_module("vit_pytorch.vit_3d").ViT(dim=1024, depth=asked.layers, heads=8, mlp_dim=2048, **sizes)
    return model, {"0": torch.randn(asked.batch, 3, 16, 128, 128)}


def _pyg(_: Asked, name: str, **options: Any) -> Made:
    """A network of three layers on a graph of the size of ogbn-arxiv."""
    import torch

    model = getattr(import_module("torch_geometric.nn.models"), name)(128, 256, 3, 40, **options)
    edges = torch.randint(0, 169343, (2, 1166243))
    return model, {"0": torch.randn(169343, 128), "1": edges}


def _vector_quantize(asked: Asked, name: str, **options: Any) -> Made:
    import torch

    quantizer = getattr(import_module("vector_quantize_pytorch"), name)(dim=256, codebook_size=1024, **options)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), quantizer)
    return model, {"0": torch.randn(asked.batch, 1024, 256)}


_SMALL = {"image_size": 224, "patch_size": 16, "dim": 384, "depth": 12, "heads": 6, "mlp_dim": 1536}

#: A function of how much is asked for, by package and model.
PACKAGES: dict[str, Callable[[Asked], Made]] = {
    "diffusers:unet2d": _unet2d,
    "diffusers:unet2d_condition": _unet2d_condition,
    "diffusers:unet1d": _unet1d,
    "diffusers:unet3d_condition": _unet3d_condition,
    "diffusers:dit": _dit,
    "diffusers:pixart": _pixart,
    "diffusers:sd3": _sd3,
    "diffusers:flux": _flux,
    "diffusers:wan": _wan,
    "diffusers:autoencoder_kl": partial(_autoencoder, name="AutoencoderKL"),
    "diffusers:vq_model": partial(_autoencoder, name="VQModel", num_vq_embeddings=8192),
    "monai:unet": _monai_unet,
    "monai:dynunet": _dynunet,
    "monai:unetr": lambda asked: (_monai("UNETR", 1, 14, 96), _volumes(asked, 1)),
    "monai:swin_unetr": lambda asked: (_monai("SwinUNETR", 1, 14, feature_size=48), _volumes(asked, 1)),
    "monai:segresnet": lambda asked: (_monai("SegResNet", 3, 16, 4, 3), _volumes(asked, 4)),
    "smp:unet_resnet34": partial(_smp, name="Unet", encoder="resnet34"),
    "smp:fpn_resnet50": partial(_smp, name="FPN", encoder="resnet50"),
    "smp:deeplabv3plus_resnet50": partial(_smp, name="DeepLabV3Plus", encoder="resnet50"),
    "smp:unetplusplus_efficientnet": partial(_smp, name="UnetPlusPlus", encoder="efficientnet-b3"),
    "smp:segformer_mit_b2": partial(_smp, name="Segformer", encoder="mit_b2"),
    "x_transformers:alibi": partial(_x_transformers, alibi_pos_bias=True, attn_flash=True),
    "x_transformers:rotary": partial(
        _x_transformers, rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True, ff_swish=True, attn_flash=True
    ),
    "x_transformers:talking_heads": partial(_x_transformers, attn_pre_talking_heads=True, rel_pos_bias=True),
    "x_transformers:hyper_connections": partial(_x_transformers, num_residual_streams=4, attn_flash=True),
    "vit_pytorch:cross_vit": partial(
        _vit_pytorch,
        module="cross_vit",
        name="CrossViT",
        image_size=256,
        sm_dim=192,
        lg_dim=384,
        sm_patch_size=16,
        lg_patch_size=64,
    ),
    "vit_pytorch:cait": partial(_vit_pytorch, module="cait", name="CaiT", cls_depth=2, **_SMALL),
    "vit_pytorch:deepvit": partial(_vit_pytorch, module="deepvit", name="DeepViT", **_SMALL),
    "vit_pytorch:max_vit": partial(_vit_pytorch, module="max_vit", name="MaxViT", dim=96, depth=(2, 2, 5, 2)),
    "vit_pytorch:regionvit": partial(_vit_pytorch, module="regionvit", name="RegionViT"),
    "vit_pytorch:twins_svt": partial(_vit_pytorch, module="twins_svt", name="TwinsSVT"),
    "vit_pytorch:vit_3d": _vit_3d,
    "pyg:gcn": partial(_pyg, name="GCN"),
    "pyg:gat": partial(_pyg, name="GAT", heads=4),
    "pyg:sage": partial(_pyg, name="GraphSAGE"),
    "pyg:gin": partial(_pyg, name="GIN"),
    "vq:vector_quantize": partial(_vector_quantize, name="VectorQuantize"),
    "vq:residual": partial(_vector_quantize, name="ResidualVQ", num_quantizers=8),
}
