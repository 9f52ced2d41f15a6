"""Exceptions: one for each error name of the service, with the service's own sentence.

``str(error)`` is one sentence: what, the limit, what was found, what to do.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AccessDenied",
    "Cancelled",
    "DeadlineExceeded",
    "Disabled",
    "Failed",
    "InteractiveAuthorizationRequired",
    "InvalidArgument",
    "ModelCorrupt",
    "ModelNotInstalled",
    "NoSpace",
    "NotReachable",
    "NotReady",
    "OpDbusError",
    "OutOfMemory",
    "Overloaded",
    "Pinned",
    "ProviderUnavailable",
    "QuotaExceeded",
    "ShuttingDown",
    "TooLarge",
    "TooLong",
    "UnexpectedReply",
    "UnknownObject",
    "WorkerFailed",
    "WrongSpace",
]

_OURS = "org.opdbus.Embedding1.Error."
_STANDARD = "org.freedesktop.DBus.Error."


class OpDbusError(Exception):
    """What the service or the bus refused, or failed at."""

    dbus_name: ClassVar[str] = ""
    """The error's name on the bus; empty for what did not come from there."""


class InvalidArgument(OpDbusError):
    """An argument or an option is wrong: mend the call."""

    dbus_name = _OURS + "InvalidArgument"


class TooLarge(OpDbusError):
    """A text, a call or its reply is beyond a limit; the limits are properties."""

    dbus_name = _OURS + "TooLarge"


class TooLong(OpDbusError):
    """A text has more tokens than the model reads, and ``truncate`` is ``error``."""

    dbus_name = _OURS + "TooLong"


class Overloaded(OpDbusError):
    """The queue is full, or leaves no time before ``deadline_ms``; the message says when to come back."""

    dbus_name = _OURS + "Overloaded"


class QuotaExceeded(OpDbusError):
    """This user has its share of the queue already: wait for its earlier calls."""

    dbus_name = _OURS + "QuotaExceeded"


class DeadlineExceeded(OpDbusError):
    """``deadline_ms`` passed before the vectors were there."""

    dbus_name = _OURS + "DeadlineExceeded"


class Cancelled(OpDbusError):
    """The call was taken back."""

    dbus_name = _OURS + "Cancelled"


class Disabled(OpDbusError):
    """The administrator has set the vector level to ``none``."""

    dbus_name = _OURS + "Disabled"


class NotReady(OpDbusError):
    """The first model is still being loaded: wait until the state is ``ready``."""

    dbus_name = _OURS + "NotReady"


class ModelNotInstalled(OpDbusError):
    """The model is not in the store; the message says what the administrator types."""

    dbus_name = _OURS + "ModelNotInstalled"


class ModelCorrupt(OpDbusError):
    """A file of the model is damaged."""

    dbus_name = _OURS + "ModelCorrupt"


class ProviderUnavailable(OpDbusError):
    """The execution provider or its library can't be used."""

    dbus_name = _OURS + "ProviderUnavailable"


class OutOfMemory(OpDbusError):
    """The device has no memory for the smallest batch."""

    dbus_name = _OURS + "OutOfMemory"


class WorkerFailed(OpDbusError):
    """The worker died twice on the same text; the service lives on."""

    dbus_name = _OURS + "WorkerFailed"


class WrongSpace(OpDbusError):
    """The index of ``expect_space`` is in another vector space: embed it again."""

    dbus_name = _OURS + "WrongSpace"


class Pinned(OpDbusError):
    """The environment or a flag of the service holds this setting."""

    dbus_name = _OURS + "Pinned"


class NoSpace(OpDbusError):
    """The service's disk is full or can't be written."""

    dbus_name = _OURS + "NoSpace"


class ShuttingDown(OpDbusError):
    """The service is on its way out: call again, the bus starts it anew."""

    dbus_name = _OURS + "ShuttingDown"


class AccessDenied(OpDbusError):
    """This user may not do this."""

    dbus_name = _STANDARD + "AccessDenied"


class InteractiveAuthorizationRequired(OpDbusError):
    """This user may do this once a password was given, which the call did not allow to ask for."""

    dbus_name = _STANDARD + "InteractiveAuthorizationRequired"


class UnknownObject(OpDbusError):
    """There is no such job any more, or not for this user."""

    dbus_name = _STANDARD + "UnknownObject"


class Failed(OpDbusError):
    """A fault of the service itself, or an error that has no name of its own here."""

    dbus_name = _STANDARD + "Failed"


class NotReachable(OpDbusError):
    """There is no such bus, nobody on it has the service's name, or it left before it answered."""


class UnexpectedReply(OpDbusError):
    """The service answered with something that is not in the contract; nothing of it was used."""


_BY_NAME = {kind.dbus_name: kind for kind in OpDbusError.__subclasses__() if kind.dbus_name}
_NOT_REACHABLE = {
    _STANDARD + name
    for name in (
        "ServiceUnknown",
        "NameHasNoOwner",
        "NoReply",
        "Disconnected",
        "NoServer",
        "Timeout",
        "TimedOut",
    )
}
_NOT_STARTED = (_STANDARD + "Spawn.", "org.freedesktop.systemd1.")
"""What begins the names of errors of those who start services."""


def from_reply(name: str, sentence: str) -> OpDbusError:
    """The exception for an error reply."""
    kind = _BY_NAME.get(name)
    if kind is not None:
        return kind(sentence)
    if name in _NOT_REACHABLE or name.startswith(_NOT_STARTED):
        return NotReachable(sentence)
    return Failed(f"{name}: {sentence}")
