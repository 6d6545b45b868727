"""A metaclass for components of our own."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any

from gradio.component_meta import ComponentMeta, updateable


class WithoutStub(ComponentMeta):
    """Gradio's own metaclass writes a `.pyi` beside the module of every new component class, which type
    checkers then read in place of the module. This one does all else that it does (gradio 6.31)."""

    def __new__(cls, name: str, bases: tuple[type, ...], attrs: dict[str, Any]) -> Any:
        if "__init__" in attrs:
            attrs["__init__"] = updateable(attrs["__init__"])
        return ABCMeta.__new__(cls, name, bases, attrs)
