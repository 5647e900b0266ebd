"""Training and inference on several GPUs, as users call them: eager, Inductor, optfuse.

    torchrun --nproc_per_node 2 benchmarks/several_gpus.py --rows ddp,tp,tpi,fsdp,simple --systems eager,optfuse \
             --out ROWS.jsonl [--layers N] [--width N] [--length N] [--steps N] [--dry] [--trace FOLDER] [--total S]
    torchrun --nproc_per_node 2 benchmarks/several_gpus.py --links --out LINKS.jsonl
    python benchmarks/several_gpus.py --table ROWS.jsonl [MORE.jsonl...]

The model is a Llama of transformers in bfloat16 with random weights; the loss is outside of it.

Rows: ``ddp`` (DistributedDataParallel), ``fsdp`` (FSDP2 of each layer), ``simple`` (parameters sharded as DTensors and
gathered inside of the graph), ``tp`` (tensor parallel, training), ``tpi`` (tensor parallel, inference).

Systems: ``eager``, ``inductor``, ``inductor-overlap`` (its reordering for communication on), ``inductor-async`` (the
same, with products cut into pieces around collectives), ``inductor-graphs`` (with its reordering and CUDA graphs),
``optfuse``, ``optfuse-nograph`` (without CUDA graphs),
``optfuse-graphs`` (with them in any case, collectives included).

Measured: medians of milliseconds a step on rank 0; NCCL's kernels, how long they take and how long nothing runs beside
them; the first step's seconds; peak memory; and the largest relative L2 distance of result and gradients from eager's.
``--links`` measures collectives by size, alone and beside kernels, for the device file's model of links.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

Row = dict[str, Any]
Step = Callable[[], torch.Tensor]

ROWS = ("ddp", "fsdp", "simple", "tp", "tpi")
SYSTEMS = (
    "eager",
    "inductor",
    "inductor-overlap",
    "inductor-async",
    "inductor-graphs",
    "optfuse",
    "optfuse-nograph",
    "optfuse-graphs",
)
#: Calls before the clock: optfuse decides about CUDA graphs in the first 25, the ranks together in the first 50.
WARM = 52
PROFILED = 4


def main() -> None:
    options = _options()
    if options.table:
        return _print_table(options.table)
    rank = int(os.environ["RANK"])
    on_gpu = not options.dry
    if on_gpu:
        torch.cuda.set_device(rank)
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    torch.set_float32_matmul_precision("high")
    try:
        if options.links:
            _measure_links(options)
        else:
            _measure_rows(options)
    finally:
        distributed.destroy_process_group()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--systems", default="eager,inductor,inductor-overlap,optfuse")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--length", type=int, default=1024, help="tokens of each of 4 sequences, or 8 for tpi")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--total", type=float, default=500, help="begin no row after so many seconds")
    parser.add_argument("--trace", type=Path, help="a folder for Chrome traces of one step each")
    parser.add_argument("--dry", action="store_true", help="tiny, on the CPU with gloo")
    parser.add_argument("--links", action="store_true")
    parser.add_argument("--table", nargs="+", type=Path)
    return parser.parse_args()


def _write(options: argparse.Namespace, row: Row) -> None:
    if distributed.get_rank() == 0:
        print(json.dumps(row), flush=True)
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


# ------------------------------------------------------------------ rows


def _measure_rows(options: argparse.Namespace) -> None:
    begun = time.monotonic()
    for row in options.rows.split(","):
        expected: list[torch.Tensor] | None = None
        for system in options.systems.split(","):
            late = torch.tensor(float(time.monotonic() - begun > options.total), device=_device(options))
            distributed.all_reduce(late)  # all ranks go on, or none
            if late.item():
                _write(options, {"row": row, "system": system, "error": "not begun: the time was over"})
                continue
            try:
                measured, values = _measure(row, system, options)
                if expected is None:
                    expected = values
                measured["distance"] = _distance(values, expected, _device(options))
            except Exception as error:
                traceback.print_exc(limit=-6)
                measured = {"error": f"{type(error).__name__}: {error}"[:400]}
            _write(options, {"row": row, "system": system, **measured})
            torch._dynamo.reset()  # noqa: SLF001 - the name that torch documents
            gc.collect()


def _measure(row: str, system: str, options: argparse.Namespace) -> tuple[Row, list[torch.Tensor]]:
    import optfuse

    before = len(optfuse.compiled_graphs())
    on_gpu = not options.dry
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        print(f"{row} {system} begins with {torch.cuda.memory_allocated() >> 20} MiB", flush=True)
    step, parameters = _step(row, system, options)
    begun = time.monotonic()
    step()
    _wait(options)
    first = time.monotonic() - begun
    for _ in range(WARM - 1 if on_gpu else 1):
        step()
    times = []
    for _ in range(options.steps if on_gpu else 1):
        distributed.barrier()
        _wait(options)
        begun = time.perf_counter()
        result = step()
        _wait(options)
        times.append(1e3 * (time.perf_counter() - begun))
    measured: Row = {
        "ms": round(statistics.median(times), 3),
        "least_ms": round(min(times), 3),
        "all_ms": [round(one, 2) for one in times],
        "first_s": round(first, 1),
    }
    if on_gpu:
        measured["peak_mib"] = torch.cuda.max_memory_allocated() >> 20
        measured.update(_profiled(step, f"{row}-{system}", options))
    if system.startswith("optfuse"):
        measured.update(_what_optfuse_did(before))
    values = [result.detach(), *(p.grad for p in parameters if p.grad is not None)]
    return measured, [_whole(value).cpu() for value in values]


def _what_optfuse_did(before: int) -> Row:
    """What became of the graphs that were compiled after the first ``before`` ones."""
    import optfuse

    graphs = optfuse.compiled_graphs()[before:]
    return {
        "graphs": len(graphs),
        "not_scheduled": [graph.why_not for graph in graphs if graph.why_not],
        "predicted": [[g.name, g.predicted_us, g.communication_us, g.exposed_us] for g in graphs],
        "calls": [_served(graph.calls) for graph in graphs],
    }


def _served(calls: Any) -> Row:
    if calls is None:
        return {}
    return {**asdict(calls), "copied": len(calls.copied)}


def _step(row: str, system: str, options: argparse.Namespace) -> tuple[Step, list[nn.Parameter]]:
    """A function that runs one step, and the parameters whose gradients it makes."""
    from torch.distributed.device_mesh import init_device_mesh

    device = _device(options)
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    model = _llama(options).to(device, torch.float32 if options.dry else torch.bfloat16)
    model = {"ddp": _ddp, "fsdp": _fsdp, "simple": _simple, "tp": _tensor_parallel, "tpi": _tensor_parallel}[row](
        model, mesh
    )
    batch, length = (2, 16) if options.dry else (8 if row == "tpi" else 4, options.length)
    torch.manual_seed(0 if row.startswith("tp") else distributed.get_rank())
    tokens = torch.randint(0, model.config.vocab_size if hasattr(model, "config") else 512, (batch, length)).to(device)
    run = _compiled(model, system)

    def infer() -> torch.Tensor:
        with torch.no_grad():
            return run(input_ids=tokens).logits

    def train() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        logits = run(input_ids=tokens).logits
        logits.float().square().mean().backward()
        return logits

    return (infer if row == "tpi" else train), list(model.parameters())


def _compiled(model: nn.Module, system: str) -> Callable[..., Any]:
    import torch._inductor.config as inductor

    inductor.reorder_for_compute_comm_overlap = system in ("inductor-overlap", "inductor-async", "inductor-graphs")
    inductor._micro_pipeline_tp = system == "inductor-async"  # noqa: SLF001 - the option's name
    if system == "eager":
        return model
    if system.startswith("inductor"):
        return torch.compile(model, mode="reduce-overhead" if system == "inductor-graphs" else "default")
    choice = {"optfuse-nograph": False, "optfuse-graphs": True}.get(system, "auto")
    return torch.compile(model, backend="optfuse", options={"cudagraphs": choice})


def _llama(options: argparse.Namespace) -> nn.Module:
    import transformers

    width = options.width
    sizes: dict[str, Any] = {"hidden_size": width, "intermediate_size": width * 11 // 4, "vocab_size": 32000}
    sizes |= {"num_attention_heads": width // 64, "num_key_value_heads": width // 256}
    sizes["num_hidden_layers"] = options.layers
    if options.dry:
        sizes |= {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 512}
        sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, use_cache=False))


def _ddp(model: nn.Module, mesh: Any) -> nn.Module:
    device = next(model.parameters()).device
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    wrapped.config = model.config
    return wrapped


def _fsdp(model: Any, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


class _Gathered(nn.Module):
    """A parameter that is kept in shards, and gathered where it is read; its gradient is scattered."""

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        from torch.distributed.tensor import Partial, Replicate

        return shard.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial("avg")])


def _simple(model: nn.Module, mesh: Any) -> nn.Module:
    """Every parameter a sharded DTensor with a parametrization that gathers it."""
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.nn.utils import parametrize

    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            shard = nn.Parameter(distribute_tensor(parameter.data, mesh, [Shard(0)]))
            setattr(module, name, shard)
            parametrize.register_parametrization(module, name, _Gathered(), unsafe=True)
    return model


def _tensor_parallel(model: Any, mesh: Any) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    styles = {f"self_attn.{name}_proj": ColwiseParallel for name in "qkv"} | {"self_attn.o_proj": RowwiseParallel}
    styles |= {"mlp.gate_proj": ColwiseParallel, "mlp.up_proj": ColwiseParallel, "mlp.down_proj": RowwiseParallel}
    plan = {
        f"model.layers.{layer}.{name}": style()
        for layer in range(len(model.model.layers))
        for name, style in styles.items()
    }
    return parallelize_module(model, mesh, plan)


def _whole(value: Any) -> torch.Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def _distance(values: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], device: torch.device) -> float:
    """The largest relative L2 distance of result and gradients."""
    pairs = ((a.to(device).double(), b.to(device).double()) for a, b in zip(values, expected, strict=True))
    return round(max(float((a - b).norm() / b.norm().clamp_min(1e-30)) for a, b in pairs), 6)


def _device(options: argparse.Namespace) -> torch.device:
    return torch.device("cpu") if options.dry else torch.device("cuda", torch.cuda.current_device())


def _wait(options: argparse.Namespace) -> None:
    if not options.dry:
        torch.cuda.synchronize()


# ------------------------------------------------------------------ profiles


def _profiled(step: Step, name: str, options: argparse.Namespace) -> Row:
    """NCCL's time in one step, what of it has no kernel beside it, and when no kernel at all runs.

    Ranks do not begin a step together, and who comes first waits in its first transfer. Of some steps that with the
    least time exposed is taken.
    """
    found = []
    for _ in range(PROFILED):
        distributed.barrier()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step()
            torch.cuda.synchronize()
        found.append((_times(profile), profile))
    row, profile = min(found, key=lambda pair: pair[0]["exposed_ms"])
    if options.trace is not None and distributed.get_rank() == 0:
        options.trace.mkdir(parents=True, exist_ok=True)
        profile.export_chrome_trace(str(options.trace / f"{name}.json.gz"))
    return row


def _times(profile: Any) -> Row:
    events = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    spans = [(e.time_range.start, e.time_range.end, "nccl" in e.name.lower()) for e in events]
    links = _merged((a, b) for a, b, is_nccl in spans if is_nccl)
    kernels = _merged((a, b) for a, b, is_nccl in spans if not is_nccl)
    both = _merged((a, b) for a, b, _ in spans)
    length = lambda some: sum(b - a for a, b in some) / 1e3  # noqa: E731
    idle = both[-1][1] / 1e3 - both[0][0] / 1e3 - length(both) if both else 0.0
    return {
        "nccl_ms": round(length(links), 3),
        "exposed_ms": round(length(both) - length(kernels), 3),
        "kernels_ms": round(length(kernels), 3),
        "idle_ms": round(idle, 3),
        "span_ms": round(length(both) + idle, 3),
        "launches": len(spans),
        "by_name": _longest(events),
    }


def _longest(events: Sequence[Any], most: int = 24) -> list[list[Any]]:
    """Names of what ran longest, with microseconds in all and how often."""
    found: dict[str, list[float]] = {}
    for event in events:
        found.setdefault(event.name[:60], []).append(event.time_range.elapsed_us())
    longest = sorted(found.items(), key=lambda item: -sum(item[1]))[:most]
    return [[name, round(sum(times), 1), len(times)] for name, times in longest]


def _merged(spans: Iterator[tuple[float, float]]) -> list[list[float]]:
    merged: list[list[float]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


# ------------------------------------------------------------------ links


def _measure_links(options: argparse.Namespace) -> None:
    """Collectives by size, alone and beside products and copies; what a product and a copy lose beside a collective."""
    ranks = distributed.get_world_size()
    sizes = [1 << k for k in range(14, 30)]
    for name, collective in _collectives().items():
        for size in sizes:
            count = size // 2 // ranks * ranks
            whole, part = (torch.ones(n, dtype=torch.bfloat16, device="cuda") for n in (count, count // ranks))
            us = _timed(lambda: collective(whole, part))  # noqa: B023 - called at once
            _write(options, {"link": name, "ranks": ranks, "bytes": 2 * count, "us": us})
    big = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    wide = torch.randn(64 << 20, device="cuda", dtype=torch.bfloat16)
    beside: dict[str, Callable[[], Any]] = {"product": lambda: big @ big, "copy": lambda: wide * 2}
    message = torch.ones(128 << 20, dtype=torch.bfloat16, device="cuda")
    link_alone = _timed(lambda: distributed.all_reduce(message))
    for name, kernel in beside.items():
        alone = _timed(kernel, 40)
        with_link, link = _timed_beside(kernel, message)
        row = {"beside": name, "alone_us": alone, "with_link_us": with_link}
        _write(options, {**row, "link_alone_us": link_alone, "link_us": link})


def _collectives() -> dict[str, Callable[[torch.Tensor, torch.Tensor], Any]]:
    return {
        "all_reduce": lambda whole, part: distributed.all_reduce(whole),
        "all_gather": distributed.all_gather_into_tensor,
        "reduce_scatter": lambda whole, part: distributed.reduce_scatter_tensor(part, whole),
        "all_to_all": lambda whole, part: distributed.all_to_all_single(torch.empty_like(whole), whole),
        **_symmetric(),
    }


def _symmetric() -> dict[str, Callable[[torch.Tensor, torch.Tensor], Any]]:
    """All-reduces through memory that the ranks see of one another, with the copy into that memory."""
    from torch.distributed import _symmetric_memory as symmetric

    group = distributed.group.WORLD.group_name  # type: ignore[union-attr]
    held = symmetric.empty(128 << 20, dtype=torch.bfloat16, device=torch.device("cuda", torch.cuda.current_device()))
    symmetric.rendezvous(held, group)

    def of(name: str) -> Callable[[torch.Tensor, torch.Tensor], Any]:
        operator = getattr(torch.ops.symm_mem, name)

        def call(whole: torch.Tensor, part: torch.Tensor) -> None:
            if len(whole) > len(held):
                return
            window = held[: len(whole)]
            window.copy_(whole)
            operator(window, "sum", group)

        return call

    return {f"{name}, symmetric": of(name) for name in ("one_shot_all_reduce", "two_shot_all_reduce_")}


def _timed(call: Callable[[], Any], repeats: int = 20) -> float:
    """Median microseconds of a call, by events, after a barrier each time."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        with _between() as span:
            call()
        times.append(span())
    return round(1e3 * statistics.median(times), 2)


def _timed_beside(kernel: Callable[[], Any], message: torch.Tensor) -> tuple[float, float]:
    """Microseconds of a kernel and of an all-reduce while both run."""
    side = torch.cuda.Stream()
    kernels, links = [], []
    for _ in range(6):
        torch.cuda.synchronize()
        distributed.barrier()
        torch.cuda.synchronize()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            marks[0].record()
            for _ in range(4):
                distributed.all_reduce(message)
            marks[1].record()
        torch.cuda._sleep(200_000)  # noqa: SLF001 - the collective is to run first
        marks[2].record()
        for _ in range(8):
            kernel()
        marks[3].record()
        torch.cuda.synchronize()
        links.append(marks[0].elapsed_time(marks[1]) / 4)
        kernels.append(marks[2].elapsed_time(marks[3]) / 8)
    return round(1e3 * statistics.median(kernels), 2), round(1e3 * statistics.median(links), 2)


@contextmanager
def _between() -> Iterator[Callable[[], float]]:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    distributed.barrier()
    torch.cuda._sleep(1_000_000)  # noqa: SLF001 - so that the host's launches do not count
    first.record()
    yield lambda: (torch.cuda.synchronize(), first.elapsed_time(last))[1]
    last.record()


# ------------------------------------------------------------------ tables


def _print_table(files: Sequence[Path]) -> None:
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    columns = ("ms", "nccl_ms", "exposed_ms", "kernels_ms", "idle_ms", "first_s", "peak_mib", "distance")
    print("| row | system | " + " | ".join(columns) + " |")
    print("|---" * (2 + len(columns)) + "|")
    for row in rows:
        if "row" in row:
            cells = [row.get("error", "")] if "error" in row else [str(row.get(name, "")) for name in columns]
            print(f"| {row['row']} | {row['system']} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    sys.exit(main())
