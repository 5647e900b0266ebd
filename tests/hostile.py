"""Hostile files: each would run code or reach outside of its folder if its reader trusted it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import optfuse
from optfuse.batch.rows import SCHEMA
from optfuse.batch.store import Store
from optfuse.cache import Cache
from optfuse.compiler.codegen.library_calls import takes_out
from optfuse.compiler.extract.extraction import extract
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, Origin
from optfuse.problem.serialize import digest, load_instance, save_instance, save_solution
from optfuse.schedule.prepared import Prepared, save_prepared, save_problem
from optfuse.solver.solve import solve
from tests.oracle.judging import GREEDY


def code(ran: Path) -> str:
    """An expression that leaves a trace."""
    return f"__import__('pathlib').Path({str(ran)!r}).touch()"


def edit(path: Path, change: Callable[[Any], None]) -> None:
    """Change a JSON file."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def state_again(folder: Path) -> None:
    """Make the solutions of a plan answer its edited instance.json."""
    for name in ("solution.json", "greedy.json"):
        edit(folder / name, lambda data: data.update(instance_digest=digest(load_instance(folder / "instance.json"))))


def with_graph(schedule: optfuse.Schedule, folder: Path, graph: LoopGraph) -> None:
    """Make a plan of another graph: its problem stated and solved as optfuse does."""
    extraction = extract(graph, schedule.instance.devices[0], allocates=lambda call: not takes_out(call))
    result = solve(extraction.instance, GREEDY)
    save_problem(extraction, schedule.interface, folder)
    save_solution(result.solution, folder / "solution.json")
    save_solution(result.greedy_solution, folder / "greedy.json")
    figures = {"objective": result.objective, "greedy_objective": result.greedy_objective, "bound": result.bound}
    edit(folder / "plan.json", lambda data: data["result"].update(figures, status=result.status))


def hostile_call(target: str, *args: Any) -> LibraryCall:
    """A call for its effect, with nothing to do with the rest of the graph."""
    return LibraryCall("z", target, args, (), (), Origin("z", target))


def enum(where: Path, escaped: bool) -> str:
    """What made pytree open a library: an enum as JSON, its mark written plainly or with an escape."""
    text = json.dumps([{"__enum__": True, "fqn": "ctypes:cdll", "name": str(where / "evil.so")}, "pair"])
    return text.replace("__enum__", "\\u005f_enum__") if escaped else text


def structures(where: Path) -> dict[str, Any]:
    """Structures of a result that would import something or open a library."""
    found: dict[str, Any] = {}
    leaf = {"type": None, "context": None, "children_spec": []}
    for escaped in (False, True):
        form = {"type": "builtins.dict", "context": enum(where, escaped), "children_spec": [leaf, leaf]}
        found[f"pytree_{escaped}"] = json.dumps([1, form])
        found[f"context_{escaped}"] = {
            "class": "torch.fx.immutable_collections.immutable_dict",
            "context": enum(where, escaped) if escaped else json.loads(enum(where, escaped)),
            "parts": ["leaf", "leaf"],
        }
        found[f"key_{escaped}"] = {"dict": [[json.loads(enum(where, escaped))[0], "leaf"]]}
    factory = {"default_factory_module": "stranger", "default_factory_name": "f", "dict_context": []}
    for name, kind in (("builtin", "eval"), ("named", "stranger.f"), ("dict", factory)):
        found[f"factory_{name}"] = {"defaultdict": [], "factory": kind}
    for name in ("stranger.Output", "ctypes.CDLL", "collections.defaultdict", "builtins.eval"):
        found[f"class_{name}"] = {"class": name, "context": None, "parts": ["leaf"]}
    found["namedtuple"] = {"namedtuple": "torch.Size", "parts": ["leaf"]}
    return found


def add_rows(run: Path, *rows: dict[str, Any], metadata: dict[bytes, bytes] | None = None) -> None:
    """Write a hostile result file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = SCHEMA
    if metadata is not None:
        schema = pa.schema([pa.field(f.name, f.type, metadata=metadata) for f in SCHEMA])
    full = [{name: None for name in SCHEMA.names} | row for row in rows]
    pq.write_table(pa.Table.from_pylist(full, schema=schema), run / "results" / "rows.parquet")


def hostile_files(schedule: optfuse.Schedule, where: Path, ran: Path) -> list[tuple[str, str]]:
    """One file a kind and attack: (reader, path)."""
    where.mkdir()
    evil, elsewhere = code(ran), str(ran.with_name("private"))
    jobs: list[tuple[str, str]] = []
    for name, structure in {**structures(where), "sound": None}.items():
        for kind in ("plan", "prepared"):
            made = where / f"{kind}_{name}"
            if kind == "plan":
                schedule.save(made)
            else:
                made.mkdir()
                save_prepared(Prepared(schedule.extraction, schedule.interface), made)
            if structure is not None:
                path = made / ("plan.json" if kind == "plan" else "interface.json")
                edit(path, lambda data, structure=structure: data["call"].update(out_spec=structure))
            jobs.append((kind, str(made)))
    named = where / "plan_named"
    schedule.save(named)
    for part in ("graph.json", "instance.json"):
        edit(named / part, lambda data: data.update(name=f'x"""; {evil}; """y'))
    state_again(named)
    called = where / "plan_called"
    schedule.save(called)
    with_graph(
        schedule,
        called,
        replace(schedule.graph, ops=(*schedule.graph.ops, hostile_call("load_library.__call__", elsewhere))),
    )
    linked = where / "plan_linked"
    schedule.save(linked)
    (linked / "kernels.py").unlink()
    (linked / "kernels.py").symlink_to(elsewhere)
    for made in (named, called, linked):
        jobs += [(kind, str(made)) for kind in ("plan", "stored", "explain")]
    run = where / "run"
    Store(run, {}, resume=False).close()
    outside = os.path.relpath(ran.parent, run / "plans")
    add_rows(
        run, *({"graph": "..", "solver": s, "plan": elsewhere, "outcome": "ok", "bound": 0} for s in (outside, "cpsat"))
    )
    jobs += [("run", str(run)), ("page", str(run))]

    value = {"shape": [2], "stride": [1], "dtype": "torch.float32", "host": False}
    place = {"op": "input", "name": "a", "value": value}
    call = {"op": "call", "name": "c", "target": "aten.neg.default", "args": [{"node": "a"}], "kwargs": {}}
    end = {"op": "output", "outputs": []}
    graphs = {
        "placeholder": [{**place, "name": f"a={evil}"}, end],
        "keyword": [place, {**call, "kwargs": {f"z={evil}, y": 1}}, end],
        "library": [place, {**call, "target": "load_library.__call__.__call__", "args": [elsewhere]}, end],
        "file": [{**call, "target": "aten.from_file.default", "args": [elsewhere, True, 4]}, end],
        "value": [place, {**call, "args": [{"dtype": "torch.load"}]}, end],
    }
    for name, nodes in graphs.items():
        path = where / f"fx_{name}.json"
        path.write_text(json.dumps({"version": 1, "name": "x", "nodes": nodes, "mutations": [], "strides": {}}))
        jobs.append(("fx", str(path)))

    return [*jobs, *hostile_data(schedule, where, evil, elsewhere)]


def hostile_data(schedule: optfuse.Schedule, where: Path, evil: str, elsewhere: str) -> list[tuple[str, str]]:
    """Files of data, whole and of the right form, whose text is code or the name of a private file."""
    device = replace(schedule.instance.devices[0], name=elsewhere)
    ops = tuple(replace(op, name=f"{evil} {number}") for number, op in enumerate(schedule.instance.ops))
    instance = replace(schedule.instance, name=evil, devices=(device,), ops=ops)
    save_instance(instance, where / "instance.json")
    save_solution(
        replace(schedule.result.solution, instance_name=evil, instance_digest=elsewhere), where / "solution.json"
    )
    jobs = [(kind, str(where / f"{kind}.json")) for kind in ("instance", "solution")]
    Cache(where).write({"key": 1}, {"tiles": [evil, {"__enum__": True, "fqn": "ctypes:cdll", "name": elsewhere}]})
    jobs.append(("cache", str(next(path for path in where.glob("*.json") if "content" in path.read_text()))))
    plain: dict[str, Any] = {"device": asdict(replace(device, name=evil))}
    plain["raw"] = {"probes": [{"file": elsewhere}], "failed": evil}
    plain["pareto"] = [
        {
            "name": elsewhere,
            **dict.fromkeys(("cap_bytes", "status", "peak_memory_bytes", "objective", "bound", "floor_bytes"), evil),
        }
    ]
    plain["bench"] = {
        "versions": {"device": evil, "torch": elsewhere},
        "kernels": [],
        "summary": {"rows": [], "geomean_speedup": evil, "prediction": elsewhere},
    }
    for kind, data in plain.items():
        path = where / f"{kind}.json"
        path.write_text(json.dumps(data))
        jobs.append((kind, str(path)))
    texts = {
        "rules": f'fuse = [["{elsewhere}", "{evil}"]]\n',
        "packing": f"id,lower,upper,size\n=cmd|' /C x'!A0,{evil},1,2\n",
        "metas": f"class A:\n    name = {evil}\n",
    }
    for kind, text in texts.items():
        path = where / f"{kind}.txt"
        path.write_text(text)
        jobs.append((kind, str(path)))
    return jobs
