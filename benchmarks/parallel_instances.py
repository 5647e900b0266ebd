"""Make the library's graphs with collectives: a tensor-parallel Llama on 2, 8 and 64 ranks, forward and backward.

python benchmarks/parallel_instances.py --out instances RANKS

One process takes the part of rank 0; the other ranks are torch's stand-ins, so collectives leave their results unset.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from optfuse.compiler.frontend.aot_autograd.aot import as_traced
from optfuse.compiler.frontend.dynamo_backend import make_backend
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.zoo import load_model_file
from optfuse.compiler.stages import fusion_problem
from optfuse.problem.serialize import save_instance

MODELS = Path(__file__).parents[1] / "models"
#: Two layers, and as many heads as there may be ranks; one row of tokens.
CONFIG = {"num_hidden_layers": 2, "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 1024}
TOKENS = 1024
RANKS_OF_A_HOST = 8


def parallel_llama(ranks: int) -> torch.nn.Module:
    """The model with the matrices of each block split among the ranks."""
    entry = load_model_file(MODELS / "llama.py")
    entry.module.CONFIGS["full"] = {**entry.module.CONFIGS["full"], **CONFIG}
    model = entry.model("full").train()
    plan: dict[str, Any] = {}
    for layer in range(CONFIG["num_hidden_layers"]):
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
            plan[f"model.layers.{layer}.{name}"] = ColwiseParallel()
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            plan[f"model.layers.{layer}.{name}"] = RowwiseParallel()
    return parallelize_module(model, init_device_mesh("cpu", (ranks,)), plan)


def saver(folder: Path, ranks: int) -> Callable[[Captured], Callable[[Sequence[torch.Tensor]], Sequence[Any]]]:
    """What compiles a graph: it saves the graph's fusion problem, and runs it as it was traced."""
    device = "h200" if ranks <= RANKS_OF_A_HOST else "h200-hosts"

    def save(captured: Captured) -> Callable[[Sequence[torch.Tensor]], Sequence[Any]]:
        half = captured.name.rpartition(".")[2]
        instance = replace(fusion_problem(captured, device).instance, name=f"llama-{ranks}-ranks.{half}")
        save_instance(instance, folder / f"{instance.name}.json.gz")
        print(f"{instance.name}: {len(instance.ops):,} ops")
        return as_traced(captured)

    return save


def main() -> None:
    """Train one step and save its two graphs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", type=int)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    distributed.init_process_group("fake", rank=0, world_size=arguments.ranks, store=FakeStore())
    model = torch.compile(
        parallel_llama(arguments.ranks), backend=make_backend(saver(arguments.out, arguments.ranks)), fullgraph=True
    )
    tokens = torch.randint(0, CONFIG["vocab_size"], (1, TOKENS))
    model(input_ids=tokens).logits.float().square().mean().backward()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
