"""The dtypes of the loop IR: how wide each is, which are floating, and which are computed with."""

from __future__ import annotations

HALF = frozenset({"float16", "bfloat16"})
FLOAT8 = frozenset({"float8_e4m3fn", "float8_e5m2"})
#: Dtypes that are loaded and stored, and computed with as float32.
NARROW = HALF | FLOAT8
FLOATING = NARROW | {"float32", "float64"}
#: Dtypes of memory that several threads may add to, as a GPU has the instruction; sums in a half type are rounded.
ADDED = frozenset({"float32", "float64", "int32", "int64"})
ADDED_OR_ROUNDED = ADDED | HALF
#: Dtypes that ATen moves, converts and compares, and has few other operators for.
LIMITED = FLOAT8 | {"uint16", "uint32", "uint64"}

BITS = {
    **{"bool": 8, "uint8": 8, "int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 16, "uint32": 32},
    **{"uint64": 64, "float8_e4m3fn": 8, "float8_e5m2": 8, "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64},
}


def integer_range(dtype: str) -> tuple[int, int]:
    """The least and the largest number of an integer dtype."""
    bits = BITS[dtype]
    return (0, (1 << bits) - 1) if dtype.startswith("uint") else (-(1 << bits - 1), (1 << bits - 1) - 1)
