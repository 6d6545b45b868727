"""Dataclass fields -> command-line options: a field's help is written once, beside the field."""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from typing import Any, TypeVar

Settings = TypeVar("Settings")


def option(default: Any, group: str, help: str, metavar: str | None = None) -> Any:
    """A dataclass field with what the command line says of it. `...` as default: must be given."""
    metadata = {"group": group, "help": help, "metavar": metavar}
    if default is ...:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def add_options(parser: argparse.ArgumentParser, settings: type) -> None:
    """One option for each field: ``block_size: int`` -> ``--block-size``. A tuple takes several values, a
    Literal names its choices, a bool has a ``--no-`` form."""
    hints = typing.get_type_hints(settings)
    groups: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        title = field.metadata["group"]
        group = groups.setdefault(title, None) or parser.add_argument_group(title)
        groups[title] = group
        group.add_argument(f"--{field.name.replace('_', '-')}", **_form(field, hints[field.name]))


def read_options(arguments: argparse.Namespace, settings: type[Settings]) -> Settings:
    """The settings that were given. Raises what their own checks raise."""
    given = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(settings)}  # type: ignore[arg-type]
    return settings(**{name: tuple(v) if isinstance(v, list) else v for name, v in given.items()})


def _form(field: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
    required = field.default is dataclasses.MISSING
    default = None if required else field.default
    shown = field.metadata["help"].replace("%", "%%")
    if not (default is None or default is False or default == ()):
        shown += f" (default: {' '.join(default) if isinstance(default, tuple) else default})"
    form: dict[str, Any] = {"help": shown, "required": required, "default": default}
    if hint is bool:
        return form | {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(hint) is types.UnionType:  # int | None
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is typing.Literal:
        return form | {"choices": typing.get_args(hint)}
    form["metavar"] = field.metadata["metavar"]
    if typing.get_origin(hint) is tuple:
        return form | {"nargs": "+", "type": typing.get_args(hint)[0]}
    return form | {"type": hint}
