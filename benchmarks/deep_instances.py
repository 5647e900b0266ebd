"""Make the library's deep graphs: a narrow Llama of many layers, and an LSTM of many steps, forward and backward.

python benchmarks/deep_instances.py --out instances [llama] [lstm_cells]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from optfuse.api import fusion_problems
from optfuse.compiler.frontend.zoo import ModelFile, load_model_file
from optfuse.problem.serialize import save_instance

MODELS = Path(__file__).parents[1] / "models"


def llama() -> tuple[ModelFile, str]:
    """64 layers, 512 wide."""
    entry = load_model_file(MODELS / "llama.py")
    narrow = {"num_hidden_layers": 64, "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8}
    entry.module.CONFIGS["full"] = {**entry.module.CONFIGS["full"], **narrow, "num_key_value_heads": 2}
    return entry, "llama-64-layers"


def lstm_cells() -> tuple[ModelFile, str]:
    """160 steps, 256 wide."""
    entry = load_model_file(MODELS / "lstm_cells.py")
    entry.module.SHAPES["full"] = (64, 160, 256)
    return entry, "lstm_cells-160-steps"


def main() -> None:
    """Capture the models named, or both, and save their graphs."""
    known = {"llama": llama, "lstm_cells": lstm_cells}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    for name in arguments.names or known:
        entry, title = known[name]()
        args, kwargs = entry.inputs("full", train=True)
        model = entry.model("full").train()
        for instance in fusion_problems(model, args, kwargs, train=True, device="h200", name=title):
            save_instance(instance, arguments.out / f"{instance.name}.json.gz")
            print(f"{instance.name}: {len(instance.ops):,} ops")


if __name__ == "__main__":
    main()
