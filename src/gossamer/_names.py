"""Names with parameters, as users type them: `ring-lattice:k=4`. A slip is answered with the near match."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Spec:
    """A name and its settings.

    >>> Spec.parse("graph", "Ring_Lattice:k=4")
    Spec(kind='graph', text='Ring_Lattice:k=4', name='ring-lattice', settings={'k': '4'})
    """

    kind: str
    """What it is a name of, for error messages."""
    text: str
    """As the user typed it."""
    name: str
    settings: dict[str, str]

    @classmethod
    def parse(cls, kind: str, text: str) -> "Spec":
        """Read `name:key=value:key=value`."""
        name, *pairs = text.strip().split(":")
        settings: dict[str, str] = {}
        for pair in pairs:
            key, equals, value = (piece.strip() for piece in pair.partition("="))
            if not equals:
                raise ValueError(f"{pair!r} in the {kind} {text!r} is not of the form key=value")
            if key in settings:
                raise ValueError(f"the {kind} {text!r} sets {key!r} twice; set it once")
            settings[key] = value
        return cls(kind, text, name.strip().lower().replace("_", "-"), settings)

    @property
    def canonical(self) -> str:
        """The one way to write it: two texts that mean the same have the same canonical form.

        >>> Spec.parse("graph", " Ring_Lattice: k = 4").canonical
        'ring-lattice:k=4'
        """
        return ":".join([self.name, *(f"{key}={value}" for key, value in self.settings.items())])

    def call(self, function: Callable[..., T], *arguments: Any, **context: Any) -> T:
        """Call with these settings, and with that of the context which the function takes and nobody has set.

        Settings are numbers: whole ones where the function's signature says int.
        """
        takes = _parameters(function, len(arguments))
        listed = ", ".join(f"{key} ({_kind_of(number)})" for key, number in takes.items())
        remedy = f"it takes {listed}" if takes else "it takes no parameters"
        keywords = {k: v for k, v in context.items() if k in takes and v is not None}
        for key, value in self.settings.items():
            if key not in takes:
                raise ValueError(f"the {self.kind} {self.text!r} sets {key!r}, which it does not know; {remedy}")
            try:
                keywords[key] = takes[key](value)
            except ValueError:
                raise ValueError(
                    f"{key}={value} in the {self.kind} {self.text!r} is not a {_kind_of(takes[key])}; {remedy}"
                ) from None
        return function(*arguments, **keywords)


def lookup(kind: str, name: str, table: Mapping[str, T]) -> T:
    """The entry of a table, or a `ValueError` that offers the near match.

    >>> lookup("graph", "rign", {"ring": 1, "torus": 2})
    Traceback (most recent call last):
        ...
    ValueError: unknown graph 'rign', did you mean 'ring'? Known: ring, torus
    """
    if name not in table:
        raise ValueError(_unknown(kind, name, table))
    return table[name]


def _unknown(kind: str, name: str, names: Iterable[str]) -> str:
    names = list(names)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f", did you mean {near[0]!r}?" if near else ";"
    return f"unknown {kind} {name!r}{hint} Known: {', '.join(names)}"


def _parameters(function: Callable[..., Any], num_given: int) -> dict[str, type[int] | type[float]]:
    """The parameters that settings may name and whether each is a whole number, as the signature says."""
    bound = set(function.keywords) if isinstance(function, partial) else set()
    parameters = list(inspect.signature(function).parameters.values())[num_given:]
    return {
        p.name: int if _annotation(p).startswith("int") else float
        for p in parameters
        if p.kind != p.POSITIONAL_ONLY and p.name not in bound
    }


def _annotation(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _kind_of(number: type) -> str:
    return "whole number" if number is int else "number"
