"""The user's rules: ``optimize(model, args, rules=[rules.fuse("gelu", "add_3"), rules.barrier("h.*.mlp")])``.

Ops are named by their own name, their FX node, the path of their module, or a glob; see docs/rules.md.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from optfuse.errors import RuleError
from optfuse.problem.rules import Rule, barrier, fuse, no_fuse, rules_from_plain, single_kernel

__all__ = ["Rule", "barrier", "fuse", "load_rules", "no_fuse", "single_kernel"]


def load_rules(path: str | Path) -> tuple[Rule, ...]:
    """Read rules from a TOML file.

    Raises:
        RuleError: If the file is missing, is not TOML, or holds something that is no rule.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RuleError(f"{path}: no such file") from error
    except (OSError, ValueError) as error:
        raise RuleError(f"{path}: cannot be read: {error}") from error
    try:
        return rules_from_plain(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise RuleError(f"{path}: not TOML: {error}") from error
    except RuleError as error:
        raise RuleError(f"{path}: {error}") from error
