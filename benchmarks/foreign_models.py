"""The models of ``benchmarks/foreign.py``: their names, and a model with its inputs for each.

A name is ``hf:TYPE`` (a model type of transformers), ``timm:NAME``, ``tv:NAME``, one of ``foreign_packages.py`` or
``file:PATH.py``, a file in the form of KernelBench's problems: a class ``Model``, and functions ``get_init_inputs`` and
``get_inputs`` that return lists of its arguments and of those of a call.
"all" are the lists of the first sweep, "more" those taken up later, which were first run without having been looked at,
"packages" those of other packages.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from runpy import run_path
from typing import Any

from foreign_packages import PACKAGES, Asked

LANGUAGE = (
    "albert bart bert_generation bigbird_pegasus biogpt blenderbot bloom camembert codegen cohere convbert ctrl "
    "data2vec_text deberta deberta_v2 distilbert electra ernie esm falcon fnet gemma gemma2 glm glm4 gpt_bigcode "
    "gpt_neo gpt_neox gptj granite layoutlm longt5 m2m_100 mamba marian mbart megatron_bert mistral mixtral "
    "mobilebert mpnet mpt nystromformer olmo olmo2 opt pegasus persimmon phi phi3 plbart qwen2 qwen3 rembert "
    "roberta roc_bert roformer rwkv smollm3 squeezebert stablelm starcoder2 switch_transformers xglm xlm "
    "xlm_roberta xlnet xmod yoso"
).split()
VISION = (
    "beit bit convnextv2 cvt data2vec_vision deit dinov2 efficientnet focalnet hiera ijepa levit mobilenet_v1 "
    "mobilevit mobilevitv2 poolformer pvt pvt_v2 regnet segformer swiftformer swinv2 vit_msn"
).split()
TIMM = (
    "coat_lite_small convmixer_768_32 crossvit_small_240 davit_small densenet121 dm_nfnet_f0 eca_nfnet_l0 "
    "edgenext_small efficientformer_l1 ese_vovnet39b fbnetc_100 gcvit_tiny ghostnet_100 gmlp_s16_224 halonet26t "
    "hrnet_w18 inception_next_tiny lambda_resnet26t maxvit_tiny_tf_224 mixer_b16_224 mobilenetv3_large_100 "
    "mobileone_s1 nfnet_l0 repvgg_a2 res2net50_26w_4s resmlp_24_224 resnest50d rexnet_150 samvit_base_patch16 "
    "sebotnet33ts_256 selecsls42b swin_s3_tiny_224 tinynet_a tnt_s_patch16_224 tresnet_m twins_svt_small "
    "visformer_small volo_d1_224 xcit_small_12_p16_224"
).split()
TORCHVISION = (
    "alexnet densenet161 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet1_0 mobilenet_v3_large "
    "regnet_y_3_2gf resnext50_32x4d shufflenet_v2_x1_0 squeezenet1_1 swin_v2_t vgg16_bn wide_resnet50_2"
).split()
#: Taken up later: mixtures of experts, state spaces, sliding windows, long inputs, encoders and decoders.
MORE_LANGUAGE = (
    "arcee bamba big_bird bitnet diffllama doge ernie4_5 exaone4 falcon_h1 falcon_mamba flex_olmo glm4_moe "
    "gpt_oss granitemoe granitemoehybrid helium ibert jamba jetmoe led lfm2 longformer minimax "
    "modernbert_decoder mt5 mvp olmo3 phimoe qwen2_moe qwen3_next recurrent_gemma seed_oss "
    "umt5 xlstm zamba2"
).split()
#: Drawn later still.
LATEST_LANGUAGE = (
    "apertus cohere2 cpmant deepseek_v2 deepseek_v3 dots1 eurobert flaubert fsmt funnel gemma3_text gemma3n_text "
    "gpt-sw3 hunyuan_v1_dense hunyuan_v1_moe lfm2_moe llama4_text longcat_flash luke mamba2 ministral modernbert mra "
    "nanochat nemotron nemotron_h olmoe openai-gpt pegasus_x prophetnet qwen3_moe reformer roberta-prelayernorm "
    "vaultgemma xlm-roberta-xl"
).split()
LATEST_VISION = "dinov2_with_registers hgnet_v2 pp_lcnet textnet".split()
#: By type: the auto class and what it takes.
MORE = {
    **dict.fromkeys((*MORE_LANGUAGE, *LATEST_LANGUAGE), ("", "text")),
    **dict.fromkeys(LATEST_VISION, ("AutoModelForImageClassification", "image")),
    **dict.fromkeys("blip clip clipseg siglip altclip chinese_clip".split(), ("AutoModel", "both")),
    **dict.fromkeys("vit_mae dinov3_vit mlcd_vision_model aimv2_vision_model".split(), ("AutoModel", "image")),
    **dict.fromkeys("videomae timesformer vivit".split(), ("AutoModelForVideoClassification", "video")),
    **dict.fromkeys("yolos rt_detr d_fine".split(), ("AutoModelForObjectDetection", "image")),
    "maskformer": ("AutoModelForUniversalSegmentation", "image"),
    "glpn": ("AutoModelForDepthEstimation", "image"),
    **dict.fromkeys("upernet mobilenet_v2".split(), ("AutoModelForSemanticSegmentation", "image")),
    "superpoint": ("AutoModelForKeypointDetection", "image"),
    "swin2sr": ("AutoModelForImageToImage", "image"),
    **dict.fromkeys(
        "hubert wavlm sew sew-d unispeech data2vec-audio wav2vec2-conformer".split(), ("AutoModelForCTC", "wave")
    ),
    **dict.fromkeys("encodec dac mimi".split(), ("AutoModel", "sound")),
    "audio-spectrogram-transformer": ("AutoModelForAudioClassification", "frames"),
    **dict.fromkeys("patchtst patchtsmixer".split(), ("AutoModelForTimeSeriesPrediction", "series")),
}
MORE_TIMM = (
    "beitv2_base_patch16_224 cait_s24_224 caformer_s18 convformer_s18 cspdarknet53 deit3_small_patch16_224 dla34 "
    "dpn68 efficientvit_b1 eva02_tiny_patch14_224 fastvit_t8 focalnet_tiny_srf hardcorenas_a hgnetv2_b0 hiera_tiny_224 "
    "lcnet_100 legacy_seresnet18 levit_128 mambaout_tiny mobilenetv4_conv_small mvitv2_tiny nest_tiny pit_s_224 "
    "poolformerv2_s12 pvt_v2_b1 rdnet_tiny regnetz_b16 repghostnet_100 repvit_m1 sequencer2d_s skresnet18 starnet_s1 "
    "swiftformer_xs tiny_vit_5m_224 vit_small_patch16_rope_224 xception41"
).split()
MORE_TORCHVISION = "convnext_tiny mnasnet0_5 regnet_x_400mf resnet18 shufflenet_v2_x0_5 vit_b_16".split()

ALL = (
    *(f"hf:{name}" for name in (*LANGUAGE, *VISION)),
    *(f"timm:{name}" for name in TIMM),
    *(f"tv:{name}" for name in TORCHVISION),
)
ALL_MORE = (
    *(f"hf:{name}" for name in MORE),
    *(f"timm:{name}" for name in MORE_TIMM),
    *(f"tv:{name}" for name in MORE_TORCHVISION),
)

#: Fields of a configuration that hold a number of layers.
DEPTHS = (
    "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers num_decoder_layers num_encoder_layers "
    "num_blocks"
).split()
#: Fields with the number of a layer's experts, and the most of them.
EXPERTS = "num_local_experts num_experts n_routed_experts moe_num_experts".split()
MOST_EXPERTS = 8
#: Fields with the number of experts that a token chooses, at most half of them.
CHOSEN = "num_experts_per_tok top_k".split()


def made(name: str, layers: int, batch: int, length: int) -> tuple[Any, dict[str, Any]]:
    """A model with random weights on the default device, and its inputs by name or number."""
    if name in PACKAGES:
        return PACKAGES[name](Asked(layers, batch, length))
    library, _, kind = name.partition(":")
    if library == "file":
        return _of_file(kind)
    return _of_transformers(kind, layers, batch, length) if library == "hf" else _of_images(library, kind, batch)


def _of_file(path: str) -> tuple[Any, dict[str, Any]]:
    names = run_path(path)
    model = names["Model"](*names["get_init_inputs"]())
    return model, {str(k): value for k, value in enumerate(names["get_inputs"]())}


def _of_images(library: str, name: str, batch: int) -> tuple[Any, dict[str, Any]]:
    import torch

    package = import_module("timm" if library == "timm" else "torchvision.models")
    if library == "timm":
        model = package.create_model(name)
        size = model.default_cfg["input_size"][1]
        return model, {"0": torch.randn(4 * batch, 3, size, size)}
    if name in package.list_models(package.video):
        size = 224 if name.startswith(("mvit", "swin")) else 112
        return package.get_model(name, weights=None), {"0": torch.randn(batch, 3, 16, size, size)}
    if name in package.list_models(package.segmentation):
        return package.get_model(name, weights=None, weights_backbone=None), {"0": torch.randn(batch, 3, 480, 480)}
    size = 299 if name == "inception_v3" else 224
    return package.get_model(name, weights=None), {"0": torch.randn(4 * batch, 3, size, size)}


def _of_transformers(name: str, layers: int, batch: int, length: int) -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers

    kinds = transformers.CONFIG_MAPPING
    config = kinds[name if name in kinds else name.replace("_", "-")]()
    cut(config, layers)
    if name == "esm":  # its configuration has no vocabulary of its own
        config.vocab_size, config.pad_token_id = 33, 1
    auto, takes = MORE.get(name, ("AutoModelForImageClassification", "image") if name in VISION else ("", "text"))
    classes = [auto] if auto else ["AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM", "AutoModel"]
    model = _first_of(config, classes)
    images = 4 * batch if name in VISION else batch
    found: dict[str, Any] = {}
    if takes in ("text", "both"):
        text = config.get_text_config()
        positions = getattr(text, "max_position_embeddings", None) or 0  # -1: no limit
        found["input_ids"] = torch.randint(5, 1000, (batch, min(length, positions - 4) if positions > 0 else length))
    if config.is_encoder_decoder and takes == "text":
        found["decoder_input_ids"] = found["input_ids"]
    made_input = INPUTS.get(takes)
    return model, found if made_input is None else {**found, **made_input(config, images)}


def cut(config: Any, layers: int) -> None:
    """Keep the first layers of a configuration and of those in it, a few experts a layer, and no cache."""
    for inner in list(config.__dict__.values()):
        if hasattr(inner, "model_type"):
            cut(inner, layers)
    for field in DEPTHS:
        if isinstance(getattr(config, field, None), int):
            setattr(config, field, min(layers, getattr(config, field)))
    for field in ("layer_types", "layers_block_type", "mlp_layer_types"):
        if isinstance(config.__dict__.get(field), list):
            setattr(config, field, config.__dict__[field][:layers])
    for field in EXPERTS:
        if isinstance(getattr(config, field, None), int):
            setattr(config, field, min(MOST_EXPERTS, getattr(config, field)))
    for field in CHOSEN:
        if any(hasattr(config, each) for each in EXPERTS) and isinstance(getattr(config, field, None), int):
            setattr(config, field, min(MOST_EXPERTS // 2, getattr(config, field)))
    config.use_cache = False


def _first_of(config: Any, classes: list[str]) -> Any:
    """A model of the first of the auto classes that knows the configuration."""
    import transformers

    for auto in classes:
        try:
            return getattr(transformers, auto).from_config(config)
        except ValueError as error:
            if "Unrecognized configuration" not in str(error):
                raise
    raise ValueError(f"transformers has no model of type {config.model_type} for {', '.join(classes)}")


def _pixels(config: Any, batch: int, *frames: int) -> Any:
    """Images, or videos of some frames, of the size that a configuration asks for."""
    import torch

    inner = next((each for each in (config, *config.__dict__.values()) if getattr(each, "image_size", None)), config)
    size = getattr(inner, "image_size", 224)
    high, wide = size if isinstance(size, (list, tuple)) else (size, size)
    return torch.randn(batch, *frames, getattr(inner, "num_channels", 3), high, wide)


def _image(config: Any, batch: int) -> dict[str, Any]:
    return {"pixel_values": _pixels(config, batch)}


def _video(config: Any, batch: int) -> dict[str, Any]:
    return {"pixel_values": _pixels(config, batch // 4, config.num_frames)}


def _wave(_: Any, batch: int) -> dict[str, Any]:
    import torch

    return {"input_values": torch.randn(batch, 32000)}


def _sound(_: Any, batch: int) -> dict[str, Any]:
    import torch

    return {"input_values": torch.randn(batch, 1, 24000)}


def _frames(config: Any, batch: int) -> dict[str, Any]:
    import torch

    return {"input_values": torch.randn(batch, config.max_length, config.num_mel_bins)}


def _series(config: Any, batch: int) -> dict[str, Any]:
    import torch

    return {"past_values": torch.randn(16 * batch, config.context_length, config.num_input_channels)}


#: What a model takes beside tokens, by the kind of its inputs: of its configuration and a batch.
INPUTS: dict[str, Callable[[Any, int], dict[str, Any]]] = {
    "both": _image,
    "image": _image,
    "video": _video,
    "wave": _wave,
    "sound": _sound,
    "frames": _frames,
    "series": _series,
}
