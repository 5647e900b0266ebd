"""The function through which an emitted module launches many kernels at once (``compiler.codegen.shared_launch``)."""

from __future__ import annotations

#: The function of an emitted module, and its text.
NAME = "launch_in_table"
DEFINITION = '''\
def launch_in_table(kernel, *tensors):
    """Run the kernels of one launch, which find their tensors, given kernel by kernel, in a table of addresses."""
    row, device = KERNELS[kernel.__name__], tensors[0].device
    key = device, 0 if INTERPRET else stream_of(device.index), tuple(map(torch.Tensor.data_ptr, tensors))
    tables = {} if is_recorded(device) else row.setdefault("tables", {})  # a CUDA graph has tables of its own
    if key not in tables:
        if len(tables) == 8:
            tables.pop(next(iter(tables)))
        aligned = not functools.reduce(operator.or_, key[-1]) & 15
        tables[key] = address_table(key[-1], device), aligned
    table, aligned = tables[key]
    places = row.get(("places", device))
    if places is None:
        places = row["places", device] = places_of_programs(row).to(device)
    if INTERPRET or aligned:
        launch(kernel, table, places)
    else:
        options = {**row["constants"], "ALIGNED": 0, **row["options"]}
        kernel[row["grid"](**row["constants"])](table, places, **options)


def places_of_programs(row):
    """For each program of a launch its kernel, above its number in that kernel."""
    constants = row["interpret" if INTERPRET else "constants"]
    programs = torch.tensor([n for count, n in row["programs"](**constants) for _ in range(count)])
    kernels = torch.repeat_interleave(torch.arange(len(programs)), programs)
    return (kernels << 32) + torch.arange(len(kernels)) - (programs.cumsum(0) - programs)[kernels]


def is_recorded(device):
    """Whether a CUDA graph is being recorded."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def address_table(addresses, device, kept=[]):
    """Addresses in the device's memory; a recorder of CUDA graphs replaces this."""
    from array import array

    table = torch.empty(len(addresses), dtype=torch.int64, pin_memory=device.type == "cuda")
    table.copy_(torch.frombuffer(array("q", addresses), dtype=torch.int64))
    if is_recorded(device):
        kept.append(table)  # every replay of a graph that is not ours copies them again
    return table.to(device, non_blocking=True)
'''
