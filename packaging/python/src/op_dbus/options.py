"""Options of a call that embeds, as keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

import numpy as np
from dbus_fast import Variant

from . import errors


class Options(TypedDict, total=False):
    """What a call may ask for; each is optional."""

    level: Literal["low", "medium", "high"]
    """Another installed level than the one in force."""
    dimensions: int
    """Matryoshka cut, for models that were trained for it."""
    normalize: bool
    """Whether vectors have length one; by default as the model does it."""
    prompt: str
    """Name of a prompt of the model, put before each text."""
    truncate: Literal["end", "start", "mean", "error"]
    """What happens to texts that are longer than the model reads. A prompt is the start of its text:
    ``start`` cuts it off, and with ``mean`` the first piece alone has it."""
    encoding: Literal["f32", "f16", "i8", "b1"]
    """What vectors are made of: float32, float16, int8 scaled in each vector by itself, or signs as
    bits that eight are packed of into a uint8."""
    priority: Literal["interactive", "bulk"]
    """Large calls are bulk whatever they ask for."""
    deadline_ms: int
    """Milliseconds after which the vectors are of no use, counted from when the call is sent. A list that
    becomes several calls has them for all together, from when the first is asked."""
    expect_space: str
    """The vector space of the caller's index; another one is refused with ``WrongSpace``."""
    device: str
    """The device that must compute."""


_SIGNATURES = {
    "level": "s",
    "dimensions": "u",
    "normalize": "b",
    "prompt": "s",
    "truncate": "s",
    "encoding": "s",
    "priority": "s",
    "deadline_ms": "u",
    "expect_space": "s",
    "device": "s",
}
OF_SOURCES = _SIGNATURES | {"framing": "s"}
"""Those of a call that reads a descriptor."""
_TYPES: dict[str, type] = {"s": str, "u": int, "b": bool}


def variants(
    options: Mapping[str, Any], signatures: Mapping[str, str] = _SIGNATURES
) -> dict[str, Variant]:
    """The options as they travel, ``a{sv}``.

    Raises ``TypeError`` for a key or a type that is not an option's, ``ValueError`` for a number that
    32 bits without a sign don't hold, and ``InvalidArgument`` for a text that D-Bus can't carry.
    Values beyond that are the service's to judge.
    """
    travelling = {}
    for key, value in options.items():
        signature = signatures.get(key)
        if signature is None:
            known = ", ".join(signatures)
            raise TypeError(f"{key!r} is not an option; the options are {known}")
        wanted = _TYPES[signature]
        if isinstance(value, (np.integer, np.bool_, np.str_)):
            # numpy's bool is no bool, and calls itself one.
            value = value.item()
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            found = type(value).__name__
            raise TypeError(f"the option {key} is a {found}; a {wanted.__name__} is right")
        if isinstance(value, int) and not 0 <= value < 2**32:
            raise ValueError(f"the option {key} is {value}; 0 to {2**32 - 1} is right")
        if isinstance(value, str):
            sendable(f"the option {key}", value)
        travelling[key] = Variant(signature, value)
    return travelling


def sendable(what: str, text: str) -> bytes:
    """A text as it travels, or ``InvalidArgument``: the bus would disconnect us for it."""
    if "\0" in text:
        raise errors.InvalidArgument(f"{what} has a NUL, which D-Bus can't carry")
    try:
        return text.encode()
    except UnicodeEncodeError as reason:
        raise errors.InvalidArgument(f"{what} is not Unicode: {reason}") from None
