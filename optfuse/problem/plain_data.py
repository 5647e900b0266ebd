"""Convert frozen dataclasses to plain data (dict, list, int, str, bool, None) and back, strictly.

Fields equal to their default are left out when writing. Reading refuses unknown keys, missing keys and wrong types,
and says where: ``ops[3].offers[0].scheme``. Nothing is executed and no class is chosen by the data.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class PlainDataError(ValueError):
    """Data that does not have the shape of the class; the message starts with the place."""


Decoder = Callable[[Any, str], Any]

_SCALARS = frozenset((int, str, bool, NoneType))


def to_plain(value: Any) -> Any:
    """Plain data of a dataclass, tuple or scalar; dataclass fields at their default are left out."""
    kind = type(value)
    if kind in _SCALARS:  # nearly all values of a large instance are
        return value
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    plain = {}
    for name, default in _defaults(kind):
        item = getattr(value, name)
        if default is dataclasses.MISSING or item != default:
            plain[name] = item if type(item) in _SCALARS else to_plain(item)
    return plain


def from_plain(kind: type, data: Any, where: str = "") -> Any:
    """Rebuild an instance of the dataclass ``kind``.

    Raises:
        PlainDataError: When a key is missing or unknown, or a value has the wrong type.
    """
    return _decoder(kind)(data, where)


@cache
def _defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.default) for field in dataclasses.fields(kind))


@cache
def _decoder(kind: Any) -> Decoder:
    """A function that checks and converts plain data to ``kind``; built once a type."""
    origin = get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(kind)
    if origin is tuple:
        return _tuple_decoder(get_args(kind))
    if origin is Literal:
        return _literal_decoder(get_args(kind))
    if origin in (Union, UnionType):
        (inner,) = (arg for arg in get_args(kind) if arg is not NoneType)
        decode = _decoder(inner)
        return lambda data, where: None if data is None else decode(data, where)
    if kind in (int, str, bool):
        return _scalar_decoder(kind)
    raise TypeError(f"no plain form for {kind!r}")


def _scalar_decoder(kind: type) -> Decoder:
    words = {int: "a whole number", str: "a string", bool: "true or false"}

    def decode(data: Any, where: str) -> Any:
        if type(data) is not kind:
            raise PlainDataError(f"{where}: expected {words[kind]}, got {_shown(data)}")
        return data

    return decode


def _literal_decoder(known: tuple[Any, ...]) -> Decoder:
    def decode(data: Any, where: str) -> Any:
        if not isinstance(data, str) or data not in known:
            raise PlainDataError(f"{where}: expected one of {', '.join(map(repr, known))}, got {_shown(data)}")
        return data

    return decode


def _tuple_decoder(args: tuple[Any, ...]) -> Decoder:
    if args[-1] is Ellipsis:
        decode_item = _decoder(args[0])

        def decode(data: Any, where: str) -> Any:
            _expect_list(data, where)
            return tuple(decode_item(item, f"{where}[{i}]") for i, item in enumerate(data))

        return decode
    decoders = [_decoder(arg) for arg in args]

    def decode_fixed(data: Any, where: str) -> Any:
        _expect_list(data, where)
        if len(data) != len(decoders):
            raise PlainDataError(f"{where}: expected {len(decoders)} entries, got {len(data)}")
        return tuple(decode(item, f"{where}[{i}]") for i, (decode, item) in enumerate(zip(decoders, data, strict=True)))

    return decode_fixed


def _dataclass_decoder(kind: Any) -> Decoder:
    hints = get_type_hints(kind)
    decoders = {name: _decoder(hints[name]) for name, _ in _defaults(kind)}
    required = [name for name, default in _defaults(kind) if default is dataclasses.MISSING]

    def decode(data: Any, where: str) -> Any:
        if not isinstance(data, dict):
            raise PlainDataError(f"{where or kind.__name__.lower()}: expected an object, got {_shown(data)}")
        prefix = f"{where}." if where else ""
        values = {}
        for key, item in data.items():
            if key not in decoders:
                near = difflib.get_close_matches(str(key), list(decoders), n=1, cutoff=0.0)[0]
                shown = key if key.isprintable() and len(key) <= 40 else _shown(key)
                raise PlainDataError(f"{prefix}{shown}: unknown key; the nearest known one is {near!r}")
            values[key] = decoders[key](item, prefix + key)
        for name in required:
            if name not in values:
                raise PlainDataError(f"{prefix}{name}: missing")
        return kind(**values)

    return decode


def _expect_list(data: Any, where: str) -> None:
    if not isinstance(data, list):
        raise PlainDataError(f"{where}: expected a list, got {_shown(data)}")


def _shown(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 40 else text[:37] + "..."
