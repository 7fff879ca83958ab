"""Flags and settings files, read into one of the config classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

from torso.errors import ConfigError
from torso.settings import read_settings

Arguments = TypeVar("Arguments")
Rest = TypeVar("Rest")


def parse(
    cls: type[Arguments],
    command: str,
    arguments: Sequence[str],
    default: Arguments | None = None,
    positional: bool = True,
) -> Arguments:
    """Flags into `cls`; a file named by --config comes first, flags override it. Exits with 2 on unknown flags.

    `positional`: whether required settings are given by position.
    """
    words = list(arguments)
    path = take_option(words, "--config")
    if path is not None:
        settings = read_settings(Path(path), cls)
        default = _build(cls, settings) if default is None else _replace(default, settings)
    extra: dict[str, Any] = {} if default is None else {"default": default}
    markers = (tyro.conf.PositionalRequiredArgs,) if positional else ()
    result: Arguments = tyro.cli(cls, prog=f"torso {command}", args=words, config=markers, **extra)
    return result


def parse_both(cls: type[Arguments], rest: Rest, command: str, arguments: Sequence[str]) -> tuple[Arguments, Rest]:
    """Flags and the --config file into `cls`, and what it does not know into `rest`, which has the defaults."""
    words = list(arguments)
    path = take_option(words, "--config")
    settings = {} if path is None else read_settings(Path(path), cls, type(rest))
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    default = _build(cls, {name: value for name, value in settings.items() if name in names})
    own, unknown = tyro.cli(cls, prog=f"torso {command}", args=words, default=default, return_unknown_args=True)
    others = _replace(rest, {name: value for name, value in settings.items() if name not in names})
    return own, parse(type(rest), command, unknown, default=others)


def _build(cls: type[Arguments], settings: dict[str, Any]) -> Arguments:
    try:
        return cls(**settings)
    except TypeError as error:
        raise ConfigError(f"the --config file lacks a setting: {error}", "See --help.") from None


def _replace(default: Arguments, settings: dict[str, Any]) -> Arguments:
    changed: Arguments = dataclasses.replace(default, **settings)  # type: ignore[type-var]
    return changed


def take_option(words: list[str], name: str) -> str | None:
    """Remove `name VALUE` or `name=VALUE` from the words; returns the value."""
    for place, word in enumerate(words):
        if word.startswith(f"{name}="):
            del words[place]
            return word[len(name) + 1 :]
        if word == name:
            if place + 1 == len(words):
                raise ConfigError(f"{name} needs a value", f"Write {name} VALUE.")
            value = words[place + 1]
            del words[place : place + 2]
            return value
    return None


def refuse_idle(options: Any, given: str, names: Sequence[str]) -> None:
    """Raise ConfigError when one of the settings `names`, which mean nothing with `given`, is not at its default."""
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    for name in names:
        if getattr(options, name) != defaults[name]:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} means nothing with {given}", "Leave one of them out.")
