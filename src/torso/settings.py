"""Settings in TOML files, checked against the dataclasses that they are for."""

from __future__ import annotations

import tomllib
import types
import typing
from pathlib import Path
from typing import Any, Literal

from torso.errors import ConfigError


def read_settings(path: Path, *classes: type[Any]) -> dict[str, Any]:
    """The settings in a TOML file, each of which one of the classes must have; raises ConfigError."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", "Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", "Mend it.") from None
    # the first class with a name decides its kind
    known = {name: hint for cls in reversed(classes) for name, hint in typing.get_type_hints(cls).items()}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise ConfigError(
            f"{path} has unknown settings: {', '.join(unknown)}", "See the command's --help for the names."
        )
    for name, value in values.items():
        if not _is_a(value, known[name]):
            raise ConfigError(f"{path} sets {name} to {value!r}, which is of a wrong kind", _expected(known[name]))
        if Path in (known[name], *typing.get_args(known[name])):
            values[name] = Path(value)
    return values


def _expected(hint: Any) -> str:
    """The values of which one can be chosen, or where the kind is told."""
    hints = [one for one in (hint, *typing.get_args(hint)) if typing.get_origin(one) is Literal]
    return f"Choose among {', '.join(map(str, typing.get_args(hints[0])))}." if hints else "See --help for the kind."


def _is_a(value: Any, hint: Any) -> bool:
    """Whether a value read from TOML can stand for a field of this type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in inner
    if origin in (typing.Union, types.UnionType):
        return any(_is_a(value, one) for one in inner)
    if origin is tuple:
        return isinstance(value, list) and all(_is_a(item, inner[0]) for item in value)
    if hint in (int, float) and isinstance(value, bool):
        return False
    kinds: dict[Any, Any] = {float: (int, float), Path: str}
    return isinstance(value, kinds.get(hint, hint))
