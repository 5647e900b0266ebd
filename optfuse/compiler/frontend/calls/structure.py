"""The nesting of arguments and results (pytree structures) as plain JSON, as plans store it.

    "leaf"
    {"tuple": [...]}   {"list": [...]}   {"deque": [...], "maxlen": 3}
    {"dict": [[key, ...], ...]}   {"OrderedDict": ...}   {"defaultdict": ..., "factory": "list"}
    {"class": "transformers.modeling_outputs.BaseModelOutput", "context": ..., "parts": [...]}
    {"namedtuple": "library.Pair", "parts": [...]}

Reading imports nothing and runs no function that the text names. A class by name is looked up among those that this
process has registered with pytree under that name, as libraries do when they are imported. What else such a class keeps
(``context``; the fields that are set, as a rule) is plain data. pytree's own text form is not used: reading it imports
the modules that it names.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from typing import Any

from optfuse.compiler.frontend.torch_internals.registries import leaf_spec, registered_class, registered_name
from optfuse.compiler.frontend.torch_internals.torch_bridge import TreeSpec
from optfuse.errors import PlanError, UnknownClassError

Json = Any

_SEQUENCES: dict[str, type] = {"tuple": tuple, "list": list, "deque": deque}
_MAPPINGS: dict[str, type] = {"dict": dict, "OrderedDict": OrderedDict, "defaultdict": defaultdict}
_NAMES = {kind: name for name, kind in (_SEQUENCES | _MAPPINGS).items()}
_FACTORIES: dict[str, Callable[[], Any]] = {
    made.__name__: made for made in (bool, dict, float, int, list, set, str, tuple)
}


def structure_to_json(spec: TreeSpec) -> Json:
    """A pytree structure as plain data.

    Raises:
        PlanError: For a class that is not registered under a name, or that keeps what is no plain data.
    """
    if spec.is_leaf():
        return "leaf"
    kind, context, parts = spec.type, spec.context, [structure_to_json(child) for child in spec.children()]
    match _NAMES.get(kind):
        case "deque":
            return {"deque": parts, "maxlen": context}
        case "tuple" | "list" as name:
            return {name: parts}
        case "dict" | "OrderedDict" as name:
            return {name: _pairs(context, parts)}
        case "defaultdict":
            factory, keys = context
            if factory is not None and _FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
                raise PlanError(f"a plan cannot hold a defaultdict of {factory}; use dicts, lists and tuples")
            return {"defaultdict": _pairs(keys, parts), "factory": None if factory is None else factory.__name__}
        case _:
            pass
    if kind is namedtuple:
        return {"namedtuple": _name(context), "parts": parts}
    return {"class": _name(kind), "context": _plain(context), "parts": parts}


def structure_from_json(data: Json) -> TreeSpec:
    """The structure that ``structure_to_json`` wrote.

    Raises:
        UnknownClassError: For a class that this process has not registered: its library is not imported.
        ValueError: For anything else that the format does not have.
    """
    if data == "leaf":
        return leaf_spec()
    if not isinstance(data, dict) or not data:
        raise ValueError(f"{data!r:.60} is no structure")
    form = next(iter(data))
    match form, len(data):
        case (("tuple" | "list"), 1):
            return TreeSpec(_SEQUENCES[form], None, _parts(data[form]))
        case "deque", 2:
            if data["maxlen"] is not None and (type(data["maxlen"]) is not int or data["maxlen"] < 0):
                raise ValueError(f"{data['maxlen']!r} is no length of a deque")
            return TreeSpec(deque, data["maxlen"], _parts(data["deque"]))
        case (("dict" | "OrderedDict"), 1):
            return TreeSpec(_MAPPINGS[form], *_read_pairs(data[form]))
        case "defaultdict", 2:
            keys, parts = _read_pairs(data["defaultdict"])
            factory = data["factory"]
            if factory is not None and factory not in _FACTORIES:
                raise ValueError(f"{factory!r} is no factory of a defaultdict here; known: {', '.join(_FACTORIES)}")
            return TreeSpec(defaultdict, [None if factory is None else _FACTORIES[factory], keys], parts)
        case "namedtuple", 2:
            found = _known(data["namedtuple"])
            parts = _parts(data["parts"])
            if not issubclass(found, tuple) or len(getattr(found, "_fields", ())) != len(parts):
                raise ValueError(f"{data['namedtuple']!r} is no named tuple of {len(parts)} fields")
            return TreeSpec(namedtuple, found, parts)
        case "class", 3:
            return TreeSpec(_known(data["class"]), _read_plain(data["context"]), _parts(data["parts"]))
        case _:
            raise ValueError(f"{form!r} is no form of a structure")


def _name(kind: type) -> str:
    name = registered_name(kind)
    if name is None:
        raise PlanError(
            f"a plan cannot hold the class {kind.__module__}.{kind.__qualname__} of this call: torch's pytree has no "
            "name for it; use dicts, lists and tuples"
        )
    return name


def _known(name: Json) -> type:
    if not isinstance(name, str) or not name.isprintable():
        raise ValueError(f"{name!r:.60} is no name of a class")
    found = registered_class(name)
    if found is None:
        raise UnknownClassError(f"the class {name} of the call's is not known here; import its library before loading")
    if found in _NAMES or found is namedtuple:
        raise ValueError(f"{name!r} has a form of its own")
    return found


def _parts(data: Json) -> list[TreeSpec]:
    if not isinstance(data, list):
        raise ValueError(f"{data!r:.60} is no list of structures")
    return [structure_from_json(part) for part in data]


def _pairs(keys: list[Any], parts: list[Json]) -> list[Json]:
    return [[_plain(key), part] for key, part in zip(keys, parts, strict=True)]


def _read_pairs(data: Json) -> tuple[list[Any], list[TreeSpec]]:
    if not isinstance(data, list):
        raise ValueError(f"{data!r:.60} is no list of keys and structures")
    keys = [_read_plain(key) for key, _ in data]
    if len(set(keys)) < len(keys):
        raise ValueError(f"a key is there twice among {keys}")
    return keys, [structure_from_json(part) for _, part in data]


def _plain(value: Any) -> Json:
    """Scalars and lists as they are; a tuple or dict as an object that says so."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [_plain(item) for item in value]
    if type(value) is tuple:
        return {"tuple": [_plain(item) for item in value]}
    if type(value) is dict:
        return {"dict": [[_plain(key), _plain(item)] for key, item in value.items()]}
    raise PlanError(
        f"a plan cannot hold the {type(value).__name__} {value!r:.60} in the structure of this call; "
        "use strings and numbers as keys"
    )


def _read_plain(data: Json) -> Any:
    match data:
        case None | bool() | int() | float() | str():
            return data
        case list():
            return [_read_plain(item) for item in data]
        case {"tuple": list(items)} if len(data) == 1:
            return tuple(_read_plain(item) for item in items)
        case {"dict": list(items)} if len(data) == 1:
            return {_read_plain(key): _read_plain(item) for key, item in items}
        case _:
            raise ValueError(f"{data!r:.60} is no plain value")
