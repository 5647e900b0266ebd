"""The fusion problem as inert data: the output of the compiler and the input of the solver.

Everything is an integer or a string; no torch, no sympy, no floats. Ids are positions: op 3 is ``instance.ops[3]``.
Times are picoseconds, sizes are bytes, rates are picoseconds per MiB (2**20 bytes) or per 2**30 operations.

A *kernel* is a set of ops with one scheme. It is legal when every op offers the scheme, every edge inside it allows
the scheme, the set is convex (no path leaves it and returns), it is connected (see ``Limits.connected``), devices
agree, and the limits and the user's rules hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FORMAT_VERSION = 1

#: No size, rate or count is larger: whole numbers up to here are the same for every reader of JSON.
LARGEST = 1 << 53

#: Scheme 0 of every instance: a kernel of one op on its own terms (library calls, collectives, copies).
ALONE = 0

OpKind = Literal["loop", "library", "collective", "wait", "copy"]
AccessClass = Literal["contiguous", "strided", "broadcast", "gather", "column"]
BufferKind = Literal["input", "constant", "temporary"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """An iteration order of kernels: ``x`` parallel points, each with ``r`` points of the inner, reduced axis.

    ``parallel`` is the number of programs that can run at once; a reduction with few of them cannot fill the device.
    The name distinguishes schemes of equal sizes, by the digits of the index space that x and r run over.
    """

    name: str
    x: int
    r: int = 1
    parallel: int = 1


@dataclass(frozen=True, slots=True)
class Read:
    """Bytes of a buffer that an op reads from memory. Reads of one buffer with equal ``footprint`` are one read.

    Accesses in one scheme with equal ``place``, unless it is 0, access the same bytes of their buffers at each point,
    and no byte at two points. So one of them may write in the place of what the others read: see ``Write``.
    """

    buffer: int
    bytes: int
    access: AccessClass = "contiguous"
    footprint: int = 0
    place: int = 0


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes of a buffer that an op writes if an op outside its kernel, or the caller, needs them.

    A kernel may write the buffer *in place* of another of equal size if it is the first to use this buffer and the last
    to use the other, writes this buffer once and the other not at all, and reads the other at the write's ``place``.
    """

    buffer: int
    bytes: int
    access: AccessClass = "contiguous"
    place: int = 0


@dataclass(frozen=True, slots=True)
class Offer:
    """One scheme in which an op can run, with what it reads and writes there.

    A ``full`` op runs at x*r points, others at x points only (the outer part). The results of an op that ``reduces``
    are complete only after a pass over r: their consumers belong to the next pass of a looped kernel.
    """

    scheme: int
    reads: tuple[Read, ...] = ()
    writes: tuple[Write, ...] = ()
    full: bool = True
    reduces: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """Arithmetic of one op: fp32 operations, special functions (exp, erf, ...), tensor-core operations, atomics."""

    fp32: int = 0
    special: int = 0
    tensor: int = 0
    atomic: int = 0


@dataclass(frozen=True, slots=True)
class Op:
    """A node of the dependency graph. ``weight`` is its share of a kernel's registers (operand count, roughly).

    ``node``, ``module`` and ``source`` locate it in the model, for messages and rules: the graph node (if its name
    differs from the op's), the path of the module, and "file:line, code". The solvers ignore them.

    A collective keeps its communicator, ``channel`` (from 1), busy for ``transfer_ps`` beside the device's kernels,
    until the op of kind "wait" that reads its result. The order counts that; a kernel's price does not.

    Ops of equal ``form``, unless it is 0, compute the same up to sizes and buffers. See ``problem.launches``.

    ``launch_ps``: what the launch of a kernel with the op costs beyond the device's; the most of a kernel's ops counts.
    """

    name: str
    kind: OpKind
    offers: tuple[Offer, ...]
    work: Work = Work()
    device: int = 0
    weight: int = 1
    recompute: bool = False
    node: str = ""
    module: str = ""
    source: str = ""
    channel: int = 0
    transfer_ps: int = 0
    form: int = 0
    launch_ps: int = 0


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor in memory. ``donated``: an input whose memory may be reused after its last read.

    ``alias`` names the input buffer whose storage this one shares, if any. A buffer that is neither produced nor an
    input or constant is an error. ``fixed`` buffers live outside the arena (a library allocates them itself).
    """

    name: str
    bytes: int
    kind: BufferKind = "temporary"
    output: bool = False
    donated: bool = False
    alias: int | None = None
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """``src`` must come before ``dst``. With a buffer it is a value; without, order only (mutation, side effects).

    ``schemes`` are those in which both may share a kernel: the value is then taken from registers. Empty: never.
    """

    src: int
    dst: int
    buffer: int | None = None
    schemes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Variant:
    """Alternatives (tuples of ops) of which exactly one runs. Greedy takes the first."""

    name: str
    alternatives: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Device:
    """A device's rates. ``*_ps_per_mib``: picoseconds to move 2**20 bytes; ``*_ps_per_gop``: to do 2**30 operations.

    ``strided_percent``, ``gather_percent`` and ``column_percent`` scale the bytes of such an access (100 = as
    contiguous); a column is read along memory by a kernel that reduces across it.
    A kernel that reduces needs ``saturating_programs`` programs to reach full bandwidth. Reductions longer than
    ``persistent_elements`` are looped: inputs used again after the reduction are read again, through L2.

    ``workspace_bytes``: what the matrix library keeps in memory for each thread that calls it, from its first call on.
    ``ramp_ps``: what each access to memory pays until the memory is at its rate; at most as much as its bytes cost.
    ``l2_write_ps_per_mib``: writes of temporaries that L2 holds until they are read; 0 prices them like other writes.
    A collective among n ranks takes ``link_start_ps``, ``link_hop_ps`` for each of its steps from rank to rank, and
    ``link_ps_per_mib`` for what a rank sends. All 0: communication takes no time, and the order does not regard it.
    A group of more than ``host_ranks`` ranks (0: as many as one likes) spans hosts, so many of its ranks on each; what
    passes between them takes ``host_link_start_ps``, ``host_link_hop_ps`` and ``host_link_ps_per_mib`` more.
    A kernel that runs beside a transfer takes ``link_slowdown_percent`` longer, for it has fewer processors and less of
    the memory's rate.
    ``attention_percent``, ``convolution_percent`` and ``depthwise_percent`` scale the tensor operations of such calls,
    ``float32_percent`` those of dense products in float32, as they are computed with TF32;
    each library call takes ``library_start_ps`` besides its launch, and ``library_overlap_percent`` of the shorter of
    its memory and compute time is hidden behind the longer. ``dot_percent``, ``dot_overlap_percent`` and
    ``dot_start_ps`` say the same of products of matrices in kernels of our own; 0 percent: there are none. All of these
    are in the ``work`` of ops already.
    ``shared_ps``: what a kernel that shares the launch of another pays instead of ``launch_ps``; 0: none do.
    """

    name: str
    launch_ps: int
    dram_ps_per_mib: int
    l2_ps_per_mib: int
    l2_bytes: int
    fp32_ps_per_gop: int
    special_ps_per_gop: int
    tensor_ps_per_gop: int
    atomic_ps_per_gop: int
    saturating_programs: int
    persistent_elements: int
    strided_percent: int = 200
    gather_percent: int = 150
    memory_bytes: int = 0
    ramp_ps: int = 0
    l2_write_ps_per_mib: int = 0
    attention_percent: int = 100
    convolution_percent: int = 100
    column_percent: int = 100
    depthwise_percent: int = 100
    library_start_ps: int = 0
    library_overlap_percent: int = 100
    link_start_ps: int = 0
    link_hop_ps: int = 0
    link_ps_per_mib: int = 0
    link_slowdown_percent: int = 0
    host_ranks: int = 0
    host_link_start_ps: int = 0
    host_link_hop_ps: int = 0
    host_link_ps_per_mib: int = 0
    workspace_bytes: int = 0
    dot_percent: int = 0
    dot_overlap_percent: int = 100
    dot_start_ps: int = 0
    shared_ps: int = 0
    float32_percent: int = 100


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one kernel. ``connected``: its ops must be linked by inside edges or by reads of a common footprint."""

    max_ops: int = 64
    max_weight: int = 1 << 30
    connected: bool = True


@dataclass(frozen=True, slots=True)
class Rules:
    """The user's wishes, as ops: pairs to fuse, pairs to keep apart, sets that are one kernel, ops that stay alone."""

    fuse: tuple[tuple[int, int], ...] = ()
    no_fuse: tuple[tuple[int, int], ...] = ()
    single_kernel: tuple[tuple[int, ...], ...] = ()
    barrier: tuple[int, ...] = ()
    peak_memory: int | None = None


@dataclass(frozen=True, slots=True)
class Instance:
    """A whole fusion problem. ``ops`` are in program order, which is a topological order of ``edges``."""

    name: str
    devices: tuple[Device, ...]
    schemes: tuple[Scheme, ...]
    buffers: tuple[Buffer, ...]
    ops: tuple[Op, ...]
    edges: tuple[Edge, ...]
    variants: tuple[Variant, ...] = ()
    limits: Limits = Limits()
    rules: Rules = Rules()
    version: int = field(default=FORMAT_VERSION)
