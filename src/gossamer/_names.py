"""Names with parameters, as users type them: `ring-lattice:k=4`. Unknown ones are answered with the near match."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Spec:
    """A name and its parameters.

    >>> Spec.parse("ring-lattice:k=4")
    Spec(name='ring-lattice', parameters={'k': 4})
    """

    name: str
    parameters: dict[str, int | float]

    @classmethod
    def parse(cls, text: str) -> "Spec":
        """Read `name:key=value:key=value`; values are numbers."""
        name, *pairs = text.strip().split(":")
        parameters = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not equals or not key:
                raise ValueError(f"{text!r}: {pair!r} is not key=value, as in 'ring-lattice:k=4'")
            parameters[key.strip()] = _number(value, text)
        return cls(name, parameters)

    def call(self, function: Callable[..., T], *arguments: Any, **context: Any) -> T:
        """Call with these parameters; of the context, only what the function takes and the user did not give."""
        takes = [
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        ][len(arguments) :]
        for key in self.parameters:
            if key not in takes:
                offer = f"it takes {', '.join(takes)}" if takes else "it takes none"
                raise ValueError(f"{self.name!r} has no parameter {key!r}: {offer}")
        return function(*arguments, **{k: v for k, v in context.items() if k in takes} | self.parameters)


def lookup(kind: str, name: str, table: Mapping[str, T]) -> T:
    """The entry of a table, or a `ValueError` that offers the near match."""
    if name not in table:
        raise ValueError(unknown(kind, name, table))
    return table[name]


def unknown(kind: str, name: str, names: Iterable[str]) -> str:
    """One sentence about a name that does not exist.

    >>> unknown("graph", "rign", ["ring", "torus"])
    "unknown graph 'rign': did you mean 'ring'? There are ring, torus"
    """
    names = list(names)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? There are" if near else "there are"
    return f"unknown {kind} {name!r}: {hint} {', '.join(names)}"


def _number(value: str, text: str) -> int | float:
    try:
        return int(value)
    except ValueError:
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"{text!r}: {value!r} is not a number") from None
