"""Read a fusion instance and price a solution of it, with the standard library alone: nothing of optfuse is used.

    python instances/read_example.py INSTANCE.json[.gz] [SOLUTION.json]

Without a solution every op is a kernel of its own, in its cheapest scheme: a legal schedule, and a poor one. The text
that this follows is README.md beside it.
"""

import gzip
import json
import sys

MIB, GOP = 2**20, 2**30


def read(path):
    """The plain data of an instance or a solution."""
    with open(path, "rb") as file:
        raw = file.read()
    return json.loads(gzip.decompress(raw) if path.endswith(".gz") else raw)


class Pricer:
    """The price of kernels of one instance, in picoseconds."""

    def __init__(self, instance):
        self.ops, self.buffers, self.schemes = instance["ops"], instance["buffers"], instance["schemes"]
        self.devices = instance["devices"]
        self.before = [[] for _ in self.ops]  # (op, buffer) that each op waits for
        self.after = [[] for _ in self.ops]
        for edge in instance["edges"]:
            self.before[edge["dst"]].append((edge["src"], edge.get("buffer")))
            self.after[edge["src"]].append((edge["dst"], edge.get("buffer")))
        # Ops of which at most one runs: those of different alternatives of one variant.
        self.rivals = [set() for _ in self.ops]
        for variant in instance.get("variants", []):
            members = {op for alternative in variant["alternatives"] for op in alternative}
            for op in members:
                beside = {o for alternative in variant["alternatives"] if op in alternative for o in alternative}
                self.rivals[op] = members - beside

    def kernel(self, ops, scheme, writes=None):
        """Launch, and the longer of memory and compute time. ``writes`` matter only where ops are computed twice."""
        ops = set(ops)
        device = self.devices[self.ops[min(ops)].get("device", 0)]
        offers = {op: next(o for o in self.ops[op]["offers"] if o["scheme"] == scheme) for op in ops}
        looped = self.schemes[scheme].get("r", 1) > device["persistent_elements"]
        passes = self._passes(ops, offers) if looped else dict.fromkeys(ops, 1)
        written = self._must_write(ops, offers) if writes is None else set(writes)
        memory = self._reads(ops, offers, passes, device)
        for offer in offers.values():
            for write in offer.get("writes", []):
                if write["buffer"] in written:
                    memory += self._first_pass(write, self._write_rate(write["buffer"], device), device)
        if any(offer.get("reduces", False) for offer in offers.values()):
            programs = max(1, self.schemes[scheme].get("parallel", 1))
            memory = memory * max(device["saturating_programs"], programs) // programs
        compute = sum(self._compute(self.ops[op].get("work", {}), device) for op in ops)
        return device["launch_ps"] + max(memory, compute)

    def _reads(self, ops, offers, passes, device):
        """Each (buffer, footprint) once, and once more through L2 for each later pass of a looped kernel."""
        first, later, extra = {}, {}, {}
        for op in ops:
            made_inside = {buffer for source, buffer in self.before[op] if source in ops}
            for read in offers[op].get("reads", []):
                if read["buffer"] in made_inside:
                    continue
                key = read["buffer"], read.get("footprint", 0)
                price = self._first_pass(read, self._read_rate(read["buffer"], device), device)
                again = self._scaled(read, device) * device["l2_ps_per_mib"] // MIB
                if (price, again) > (first.get(key, -1), later.get(key, -1)):
                    first[key], later[key] = price, again
                extra[key] = max(extra.get(key, 0), passes[op] - 1)
        return sum(first[key] + later[key] * extra[key] for key in first)

    def _must_write(self, ops, offers):
        """Outputs, inputs that are changed in place, and what is used outside by an op that can run beside these."""
        served = ops.union(*(self.rivals[op] for op in ops))
        found = set()
        for op in ops:
            outside = {buffer for user, buffer in self.after[op] if user not in served}
            for write in offers[op].get("writes", []):
                buffer = self.buffers[write["buffer"]]
                lasting = buffer.get("output", False) or buffer.get("kind", "temporary") != "temporary"
                if lasting or write["buffer"] in outside:
                    found.add(write["buffer"])
        return found

    def _passes(self, ops, offers):
        """In how many passes over r each op's inputs are needed: its own, and those of what is computed from it."""
        level, need = {}, {}
        for op in sorted(ops):
            inside = [source for source, _ in self.before[op] if source in ops]
            level[op] = max((level[s] + offers[s].get("reduces", False) for s in inside), default=0)
        for op in sorted(ops, reverse=True):
            need[op] = {level[op]}
            if offers[op].get("full", True) and not offers[op].get("reduces", False):
                for user, buffer in self.after[op]:
                    if user in ops and buffer is not None:
                        need[op] |= need[user]
        return {op: len(levels) for op, levels in need.items()}

    def _scaled(self, access, device):
        percent = {
            "strided": device.get("strided_percent", 200),
            "gather": device.get("gather_percent", 150),
            "column": device.get("column_percent", 100),
        }
        return access["bytes"] * percent.get(access.get("access", "contiguous"), 100) // 100

    def _first_pass(self, access, rate, device):
        price = self._scaled(access, device) * rate
        return (price + min(price, device.get("ramp_ps", 0) * MIB)) // MIB

    def _in_l2(self, buffer, device):
        facts = self.buffers[buffer]
        return facts.get("kind", "temporary") == "temporary" and facts["bytes"] * 8 <= device["l2_bytes"]

    def _read_rate(self, buffer, device):
        return device["l2_ps_per_mib"] if self._in_l2(buffer, device) else device["dram_ps_per_mib"]

    def _write_rate(self, buffer, device):
        cached = device.get("l2_write_ps_per_mib", 0) if self._in_l2(buffer, device) else 0
        return cached or device["dram_ps_per_mib"]

    def _compute(self, work, device):
        return (
            sum(work.get(kind, 0) * device[f"{kind}_ps_per_gop"] for kind in ("fp32", "special", "tensor", "atomic"))
            // GOP
        )


def unfused(instance):
    """Every op alone, in its cheapest scheme; of each variant the first alternative runs."""
    skipped = {op for v in instance.get("variants", []) for other in v["alternatives"][1:] for op in other}
    skipped -= {op for v in instance.get("variants", []) for op in v["alternatives"][0]}
    pricer = Pricer(instance)
    for op, facts in enumerate(instance["ops"]):
        if op not in skipped:
            schemes = [offer["scheme"] for offer in facts["offers"]]
            yield {"ops": [op], "scheme": min(schemes, key=lambda s, op=op: pricer.kernel([op], s))}


def objective(instance, kernels):
    """What a list of kernels costs, in picoseconds."""
    pricer = Pricer(instance)
    return sum(pricer.kernel(kernel["ops"], kernel["scheme"], kernel.get("writes")) for kernel in kernels)


if __name__ == "__main__":
    problem = read(sys.argv[1])
    answer = read(sys.argv[2])["kernels"] if len(sys.argv) > 2 else list(unfused(problem))
    print(f"{problem['name']}: {len(answer)} kernels, {objective(problem, answer)} ps")
