"""Exceptions: one for each error name of the service, with the service's own sentence.

``str(error)`` is one sentence: what, the limit, what was found, what to do.
"""

from __future__ import annotations

import re
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

    def __init_subclass__(cls, /, prefix: str = "", **more: object) -> None:
        """``prefix`` comes before the class's own name in the name on the bus."""
        super().__init_subclass__(**more)
        if prefix:
            cls.dbus_name = prefix + cls.__name__


class InvalidArgument(OpDbusError, prefix=_OURS):
    """An argument or an option is wrong: mend the call."""


class TooLarge(OpDbusError, prefix=_OURS):
    """A text, a call, its tokens or its result is beyond a limit, which the message names; most are properties."""


class TooLong(OpDbusError, prefix=_OURS):
    """A text has more tokens than the model reads, and ``truncate`` is ``error``."""


class Overloaded(OpDbusError, prefix=_OURS):
    """The service has no room now: in its queue, before ``deadline_ms``, for one more stream, job, direct
    connection or result, or for the reply or its vectors. The message says when to come back, where that is known."""


class QuotaExceeded(OpDbusError, prefix=_OURS):
    """This user has its share already, of the queue or of streams, jobs, direct connections, results or vectors for
    replies: wait for its earlier calls, or end one."""


class DeadlineExceeded(OpDbusError, prefix=_OURS):
    """``deadline_ms`` passed before the vectors were there, or the source of texts was silent for
    ``source_silence_s``."""


class Cancelled(OpDbusError, prefix=_OURS):
    """The call was taken back; or the job was cancelled, or its result was fetched by another call."""


class Disabled(OpDbusError, prefix=_OURS):
    """The administrator has set the vector level to ``none``."""


class NotReady(OpDbusError, prefix=_OURS):
    """The first model is still being loaded: wait until the state is no longer ``loading``."""


class ModelNotInstalled(OpDbusError, prefix=_OURS):
    """The model is not in the store; the message says what the administrator types."""


class ModelCorrupt(OpDbusError, prefix=_OURS):
    """A file of the model is damaged or may be written by others, or its tokenizer can't be used."""


class ProviderUnavailable(OpDbusError, prefix=_OURS):
    """The execution provider or its library can't be used."""


class OutOfMemory(OpDbusError, prefix=_OURS):
    """The device has no memory for the smallest batch."""


class WorkerFailed(OpDbusError, prefix=_OURS):
    """A text failed twice, no worker can be had, or the model in force can't be used; the service lives on."""


class WrongSpace(OpDbusError, prefix=_OURS):
    """The index of ``expect_space`` is in another vector space: embed it again."""


class Pinned(OpDbusError, prefix=_OURS):
    """The environment, a flag or another setting of the service holds this one."""


class NoSpace(OpDbusError, prefix=_OURS):
    """The service has no memory for a result, or no file descriptor or thread for its reply or for a direct
    connection. Of a change: its disk is full or can't be written."""


class ShuttingDown(OpDbusError, prefix=_OURS):
    """The service is on its way out: call again, the bus starts it anew."""


class AccessDenied(OpDbusError, prefix=_STANDARD):
    """This user may not do this."""


class InteractiveAuthorizationRequired(OpDbusError, prefix=_STANDARD):
    """This user may do this once a password was given, which the call did not allow to ask for."""


class UnknownObject(OpDbusError, prefix=_STANDARD):
    """There is no such job any more: it was cancelled, its result was fetched, or what ran it has ended."""


class Failed(OpDbusError, prefix=_STANDARD):
    """A fault of the service itself, or an error that has no name of its own here."""


class NotReachable(OpDbusError):
    """There is no such bus or no room on it, nobody there has the service's name, or it left, or the connection
    ended, before it answered."""


class UnexpectedReply(OpDbusError):
    """The service answered with something that is not in the contract; nothing of it was used."""


_BY_NAME = {kind.dbus_name: kind for kind in OpDbusError.__subclasses__() if kind.dbus_name}
_NOT_THERE = {_STANDARD + name for name in ("ServiceUnknown", "NameHasNoOwner")}
_NOT_REACHABLE = {
    _STANDARD + name
    for name in (
        "NoReply",
        "Disconnected",
        "NoServer",
        "Timeout",
        "TimedOut",
    )
}
_NOT_STARTED = (_STANDARD + "Spawn.", "org.freedesktop.systemd1.")
"""What begins the names of errors of those who start services."""
_TEXT = re.compile(r"((?:the size of )?text )(\d+)( .*)", re.DOTALL)
"""How sentences begin that are about one text."""


def from_reply(name: str, sentence: str) -> OpDbusError:
    """The exception for an error reply."""
    kind = _BY_NAME.get(name)
    if kind is not None:
        return kind(sentence)
    if name in _NOT_THERE:
        # The bus knows no more than that.
        where = "start it there (on the system's: systemctl start op-dbus), or name the bus that it is on"
        return NotReachable(f"the service is not on this bus ({sentence}): {where}")
    if name in _NOT_REACHABLE or name.startswith(_NOT_STARTED):
        return NotReachable(sentence)
    return Failed(f"{name}: {sentence}")


def pause_of(error: OpDbusError) -> float:
    """Seconds until the service is to be asked again by its own sentence; 1 where that tells no time."""
    hint = re.search(r"try again in (\d+) (m?)s\b", str(error))
    return max(int(hint[1]) / (1000 if hint[2] else 1), 0.01) if hint else 1.0


def is_about_text(error: OpDbusError) -> bool:
    """Whether the sentence names a text of its call; a call of fewer texts would be refused for it as well."""
    return _TEXT.match(str(error)) is not None


def about_texts(first: int, count: int, error: OpDbusError) -> OpDbusError:
    """The error of a call with ``count`` texts that begin at number ``first``: the service counts from there."""
    about = _TEXT.match(str(error))
    if about:
        begin, number, rest = about.groups()
        return type(error)(f"{begin}{first + int(number)}{rest}")
    if count == 1 and isinstance(error, TooLarge):
        return type(error)(f"text {first}: {error}")
    return error
