"""The price of a kernel, by hand."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from optfuse.problem.cost import default_writes, kernel_cost, kernel_price
from optfuse.problem.instance import ALONE, Buffer, Edge, Instance, Offer, Op, Read, Scheme, Variant, Work, Write
from optfuse.problem.legality import common_schemes
from tests.problem.cases import ADD, FLAT, GELU, MATMUL, MIB, ROWS, SCALE, SHIFT, SUM, A, B, C, E, F, example
from tests.strategies import DEVICE, instances, share

LAUNCH, DRAM, L2 = DEVICE.launch_ps, DEVICE.dram_ps_per_mib, DEVICE.l2_ps_per_mib


def test_one_op_reads_inputs_from_dram_and_writes_there() -> None:
    price = kernel_price(example(), (SCALE,), FLAT)
    assert (price.read_bytes, price.write_bytes) == (MIB + 1024, MIB)
    assert price.memory == 2 * DRAM + DRAM // 1024
    assert price.total == LAUNCH + price.memory


def test_values_inside_a_kernel_cost_nothing() -> None:
    fused = kernel_price(example(), (ADD, GELU), FLAT)
    # a and d are temporaries of 1 MiB, more than an eighth of 4 MiB of L2; c is an output, e is used by sum.
    assert fused.read_bytes == 2 * MIB
    assert fused.memory == 2 * DRAM + 2 * DRAM
    assert default_writes(example(), (ADD, GELU), FLAT) == (C, E)
    assert default_writes(example(), (ADD, GELU, SUM), ROWS) == (C, F)


def test_writes_may_be_given() -> None:
    with_all = kernel_price(example(), (SCALE, SHIFT), FLAT)
    without_a = kernel_price(example(), (SCALE, SHIFT), FLAT, writes=(B,))
    assert default_writes(example(), (SCALE, SHIFT), FLAT) == (A, B)
    assert with_all.memory - without_a.memory == DRAM


def single(offer: Offer, scheme: Scheme, work: Work | None = None) -> Instance:
    """One op that reads input 0 and writes output 1, both of 1 MiB."""
    op = Op("op", "loop", (offer,), work or Work())
    buffers = (Buffer("in", MIB, "input"), Buffer("out", MIB, output=True))
    return Instance("single", (DEVICE,), (Scheme("alone", 1), scheme), buffers, (op,), ())


def test_access_classes_scale_bytes() -> None:
    flat = Scheme("flat", MIB, 1, MIB)
    for access, percent in (("contiguous", 100), ("strided", 200), ("gather", 150), ("broadcast", 100)):
        offer = Offer(1, (Read(0, MIB, access),), (Write(1, MIB),))  # type: ignore[arg-type]
        assert kernel_price(single(offer, flat), (0,), 1).memory == DRAM * percent // 100 + DRAM


def test_each_access_pays_until_memory_is_at_its_rate() -> None:
    offer = Offer(1, (Read(0, MIB),), (Write(1, MIB),))
    plain = single(offer, Scheme("flat", MIB, 1, MIB))
    for ramp, paid in ((0, 0), (1000, 2000), (100 * DRAM, 2 * DRAM)):  # at most as much as the bytes themselves
        slow = replace(plain, devices=(replace(DEVICE, ramp_ps=ramp),))
        assert kernel_price(slow, (0,), 1).memory == 2 * DRAM + paid


def test_writes_that_stay_in_l2_may_have_a_price_of_their_own() -> None:
    offer = Offer(1, (Read(0, MIB),), (Write(1, 1024),))
    buffers = (Buffer("in", MIB, "input"), Buffer("small", 1024))
    reader = Op("reader", "loop", (Offer(1, (Read(1, 1024),)),))
    writer = Op("writer", "loop", (offer,))
    flat = Scheme("flat", MIB, 1, MIB)
    found = []
    for rate in (0, L2 // 2):
        device = replace(DEVICE, l2_write_ps_per_mib=rate)
        case = Instance("pair", (device,), (Scheme("alone", 1), flat), buffers, (writer, reader), (Edge(0, 1, 1),))
        found.append(kernel_price(case, (0,), 1).memory)
    assert found == [DRAM + DRAM // 1024, DRAM + L2 // 2 // 1024]


def test_few_programs_cannot_fill_the_device() -> None:
    offer = Offer(1, (Read(0, MIB),), (Write(1, MIB),), reduces=True)
    full = kernel_price(single(offer, Scheme("rows", 64, 64, parallel=64)), (0,), 1)
    few = kernel_price(single(offer, Scheme("rows", 16, 64, parallel=16)), (0,), 1)
    assert few.memory == 4 * full.memory


def test_compute_bound_kernels_cost_their_arithmetic() -> None:
    offer = Offer(1, (Read(0, MIB),), (Write(1, MIB),))
    work = Work(fp32=1 << 30, special=1 << 30, tensor=1 << 30, atomic=1 << 30)
    price = kernel_price(single(offer, Scheme("flat", MIB, 1, MIB), work), (0,), 1)
    rates = DEVICE.fp32_ps_per_gop, DEVICE.special_ps_per_gop, DEVICE.tensor_ps_per_gop, DEVICE.atomic_ps_per_gop
    assert price.compute == sum(rates)
    assert price.total == LAUNCH + price.compute


def softmax(r: int) -> Instance:
    """maximum(x) = m; shifted(x, m) = s; total(s) = t; quotient(s, t) = q, in one scheme of ``r`` reduced points."""
    buffers = (Buffer("x", MIB, "input"), Buffer("m", 64), Buffer("s", MIB), Buffer("t", 64))
    buffers = (*buffers, Buffer("q", MIB, output=True))

    def op(name: str, reads: tuple[int, ...], write: int, reduces: bool = False) -> Op:
        taken = tuple(Read(number, buffers[number].bytes) for number in reads)
        return Op(name, "loop", (Offer(1, taken, (Write(write, buffers[write].bytes),), reduces=reduces),))

    ops = (
        op("maximum", (0,), 1, True),
        op("shifted", (0, 1), 2),
        op("total", (2,), 3, True),
        op("quotient", (2, 3), 4),
    )
    edges = tuple(Edge(*edge, (1,)) for edge in ((0, 1, 1), (1, 2, 2), (1, 3, 2), (2, 3, 3)))
    schemes = (Scheme("alone", 1), Scheme("rows", 64, r, parallel=64))
    return Instance("softmax", (DEVICE,), schemes, buffers, ops, edges)


def test_a_looped_reduction_reads_its_input_again_in_each_pass() -> None:
    everything = (0, 1, 2, 3)
    persistent = kernel_price(softmax(DEVICE.persistent_elements), everything, 1)
    looped = kernel_price(softmax(DEVICE.persistent_elements + 1), everything, 1)
    assert persistent.memory == 2 * DRAM
    # maximum in pass one; shifted is walked again for total in pass two and for quotient in pass three. An access is
    # charged for the op with the most passes.
    assert looped.memory == persistent.memory + L2
    assert looped.read_bytes == persistent.read_bytes == MIB


def test_a_footprint_is_read_once_a_kernel() -> None:
    def pair(footprint: int) -> Instance:
        buffers = (Buffer("in", MIB, "input"), Buffer("p", MIB, output=True), Buffer("q", MIB, output=True))
        ops = tuple(
            Op(f"op{i}", "loop", (Offer(1, (Read(0, MIB, footprint=footprint * i),), (Write(i + 1, MIB),)),))
            for i in range(2)
        )
        return Instance("pair", (DEVICE,), (Scheme("alone", 1), Scheme("flat", MIB)), buffers, ops, ())

    assert kernel_price(pair(0), (0, 1), 1).read_bytes == MIB
    assert kernel_price(pair(1), (0, 1), 1).read_bytes == 2 * MIB


def test_small_temporaries_are_read_from_l2() -> None:
    assert kernel_price(example(), (MATMUL,), ALONE).memory == DRAM + DRAM
    roomy = replace(example(), devices=(replace(DEVICE, l2_bytes=8 * MIB),))
    assert kernel_price(roomy, (MATMUL,), ALONE).memory == L2 + DRAM


def test_users_in_other_alternatives_force_no_write() -> None:
    """gelu runs either as part of a kernel with add, or as a library call: with the first chosen, e has one user."""
    plain = example()
    library = Op("gelu_library", "library", (Offer(ALONE, (Read(C, MIB),), (Write(E, MIB),)),))
    ops = (*plain.ops[:GELU], library, *plain.ops[GELU:])
    edges = tuple(
        replace(edge, src=edge.src + (edge.src >= GELU), dst=edge.dst + (edge.dst >= GELU)) for edge in plain.edges
    )
    edges = (*edges, Edge(ADD, GELU, C), Edge(GELU, SUM + 1, E))
    buffers = tuple(replace(buffer, output=buffer.name == "f") for buffer in plain.buffers)
    instance = replace(plain, ops=ops, edges=edges, buffers=buffers, variants=(Variant("v", ((GELU + 1,), (GELU,))),))
    assert default_writes(instance, (ADD, GELU + 1), FLAT) == (E,)
    assert default_writes(instance, (ADD,), FLAT) == (C,)


@settings(max_examples=share(60), deadline=None, derandomize=True)
@given(instances(max_ops=7, variants=True))
def test_default_writes_are_the_default(instance: Instance) -> None:
    for left in range(len(instance.ops)):
        for right in range(left, len(instance.ops)):
            for scheme in common_schemes(instance, {left, right}):
                writes = default_writes(instance, (left, right), scheme)
                cost = kernel_cost(instance, (left, right), scheme)
                assert kernel_cost(instance, (left, right), scheme, writes) == cost
