"""The function through which an emitted module launches many kernels at once (``compiler.codegen.shared_launch``)."""

from __future__ import annotations

#: The function of an emitted module, and its text.
NAME = "launch_in_table"
DEFINITION = '''\
def launch_in_table(kernel, *tensors):
    """Run the kernels of one launch, which find their tensors, given kernel by kernel, in a table of addresses."""
    row, device = KERNELS[kernel.__name__], tensors[0].device
    constants = row["interpret" if INTERPRET else "constants"]
    addresses = tuple(map(torch.Tensor.data_ptr, tensors))
    if ("places", device) not in row:
        programs = torch.tensor([n for count, n in row["programs"](**constants) for _ in range(count)])
        kernels = torch.repeat_interleave(torch.arange(len(programs)), programs)
        places = torch.cat([programs.cumsum(0) - programs, kernels])
        row["places", device] = places.to(torch.int32).to(device)
    tables = {} if is_recorded(device) else row.setdefault("tables", {})  # a CUDA graph has tables of its own
    key = device, 0 if INTERPRET else stream_of(device.index), addresses
    table = tables.get(key)
    if table is None:
        if len(tables) == 8:
            tables.pop(next(iter(tables)))
        table = tables[key] = address_table(addresses, device)
    if INTERPRET or not functools.reduce(operator.or_, addresses) & 15:
        launch(kernel, table, row["places", device])
    else:
        options = {**row["constants"], "ALIGNED": 0, **row["options"]}
        kernel[row["grid"](**row["constants"])](table, row["places", device], **options)


def is_recorded(device):
    """Whether a CUDA graph is being recorded."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def address_table(addresses, device, kept=[]):
    """Addresses in the device's memory; a recorder of CUDA graphs replaces this."""
    table = torch.tensor(addresses, dtype=torch.int64, pin_memory=device.type == "cuda")
    if is_recorded(device):
        kept.append(table)  # every replay of a graph that is not ours copies them again
    return table.to(device, non_blocking=True)
'''
