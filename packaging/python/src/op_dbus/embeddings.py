"""Vectors, and how they came to be."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import UnexpectedReply

_ELEMENTS = {"f32": "<f4", "f16": "<f2", "i8": "i1", "b1": "u1"}
"""What numpy calls the elements of an encoding."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    *[ctypes.c_int] * 3,
    ctypes.c_long,
]
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value
_MAPPINGS_MAX = 16_384
"""Results that are mapped at once: a process may have some 65,000 mappings, its threads and memory included."""
_ALWAYS_MAPPED_BYTES = 1 << 20
"""From this size on a result is mapped all the same."""
_mappings: set[int] = set()
"""Where they are."""
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Vectors of texts, in the order of the texts, with what the service says about them.

    Works as the array ``vectors`` wherever numpy takes one.
    """

    vectors: NDArray[Any]
    """Shape ``[texts, dimensions]``, read-only: the very bytes that the service sent. They are float32, or
    what ``encoding`` asked for: float16, int8, or uint8 of eight bits each, as ``numpy.packbits`` has them,
    of which a row has an eighth of ``dimensions``, rounded up."""
    dimensions: int
    """Components of a vector."""
    space: str
    """Vector space, with the precision of the first call behind the dash. Keep it with every index."""
    level: str
    """Level that served; empty for an imported model."""
    model: str
    """Model that served."""
    provider: str
    """Execution provider that computed; several with commas in between."""
    device: str
    """Device that computed, likewise."""
    precision: str
    """Precision of the arithmetic; several with commas in between."""
    tokens: int
    """Tokens of the texts as they were embedded, special tokens included; of cached ones, too."""
    truncated: tuple[int, ...]
    """Indices of the texts that were longer than the model reads; of a job's the first 65,536."""
    truncated_count: int
    """How many texts these were, also where not all are listed."""
    cached: int
    """Texts answered from a cache."""
    queue_us: int
    """Microseconds between arrival and first batch, summed over the calls that were made."""
    compute_us: int
    """Microseconds from first batch to end of last, summed over the calls that were made."""

    def __len__(self) -> int:
        return len(self.vectors)

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        # Not `in`: to numpy None is float64.
        if copy is False and dtype is not None and dtype != self.vectors.dtype:
            raise ValueError(f"the vectors are {self.vectors.dtype}; {dtype} needs a copy")
        return self.vectors.astype(dtype or self.vectors.dtype, copy=bool(copy))


def from_reply(vectors: NDArray[Any], dimensions: int, info: dict[str, Any]) -> Embeddings:
    """What one call answered."""
    try:
        return Embeddings(
            vectors=vectors,
            dimensions=dimensions,
            space=str(info["space"]),
            level=str(info["level"]),
            model=str(info["model"]),
            provider=str(info["provider"]),
            device=str(info["device"]),
            precision=str(info["precision"]),
            tokens=int(info["tokens"]),
            truncated=tuple(info["truncated"]),
            truncated_count=int(info.get("truncated_count", len(info["truncated"]))),
            cached=int(info["cached"]),
            queue_us=int(info["queue_us"]),
            compute_us=int(info["compute_us"]),
        )
    except KeyError as missing:
        raise UnexpectedReply(f"the reply's information has no {missing}") from None


def copied(part: Embeddings, rows: NDArray[Any]) -> Embeddings:
    """The same with its vectors in ``rows``."""
    if part.vectors.shape != rows.shape:
        sentence = f"vectors of {part.vectors.shape[1]} elements came after ones of {rows.shape[1]}"
        raise UnexpectedReply(f"{sentence} in the same vector space")
    rows[:] = part.vectors
    return replace(part, vectors=rows)


def joined(parts: Sequence[Embeddings], vectors: NDArray[Any]) -> Embeddings:
    """The answers of several calls as one, whose vectors are all in ``vectors``, which is read-only then."""
    truncated: list[int] = []
    first = 0
    for part in parts:
        truncated.extend(first + index for index in part.truncated)
        first += len(part)
    vectors.flags.writeable = False
    return Embeddings(
        vectors=vectors,
        dimensions=parts[0].dimensions,
        space=parts[0].space,
        level=parts[0].level,
        model=parts[0].model,
        provider=_each_once(part.provider for part in parts),
        device=_each_once(part.device for part in parts),
        precision=_each_once(part.precision for part in parts),
        tokens=sum(part.tokens for part in parts),
        truncated=tuple(truncated),
        truncated_count=sum(part.truncated_count for part in parts),
        cached=sum(part.cached for part in parts),
        queue_us=sum(part.queue_us for part in parts),
        compute_us=sum(part.compute_us for part in parts),
    )


def _each_once(lists: Any) -> str:
    return ",".join(dict.fromkeys(name for names in lists for name in names.split(",")))


class Layout:
    """How vectors lie in what the service sends."""

    def __init__(self, rows: int, dimensions: int, encoding: str) -> None:
        element = _ELEMENTS.get(encoding)
        if element is None:
            raise UnexpectedReply(f"this package is older than the encoding {encoding!r}")
        self._element = np.dtype(element)
        self._shape = (rows, -(-dimensions // 8) if encoding == "b1" else dimensions)
        self._dimensions = dimensions

    def check(self, size: int) -> None:
        """Refuses another number of bytes."""
        rows, columns = self._shape
        if size != rows * columns * self._element.itemsize:
            sentence = f"{size} bytes are not {rows} vectors of {self._dimensions} dimensions"
            raise UnexpectedReply(f"{sentence} as {self._element}")

    def view(self, content: bytes | memoryview) -> NDArray[Any]:
        """The vectors in bytes of the right number, without a copy."""
        return np.frombuffer(content, dtype=self._element).reshape(self._shape)


def packed_view(packed: bytes, layout: Layout) -> NDArray[Any]:
    """The vectors in the bytes of a message, without a copy."""
    layout.check(len(packed))
    return layout.view(memoryview(packed).toreadonly())


def from_descriptors(
    descriptors: Sequence[int], body: Sequence[Any], encoding: str
) -> Embeddings:
    """What a call answered with its vectors in a descriptor; all that came are closed."""
    handle, rows, dimensions, info = body
    try:
        if handle >= len(descriptors):
            # The kernel leaves out what this process has no place for.
            sentence = "the reply came without its file descriptor, as where this process may open no more"
            raise UnexpectedReply(f"{sentence}: raise its limit (ulimit -n) or close some")
        vectors = sealed_view(descriptors[handle], Layout(rows, dimensions, encoding))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return from_reply(vectors, dimensions, info)


def sealed_view(descriptor: int, layout: Layout) -> NDArray[Any]:
    """The vectors in a sealed memfd, without a copy; the mapping ends with the last view of it. Few
    vectors are copied instead where many other results are kept.

    A file that somebody can still shrink would end this process when it is read, and one that
    somebody can still write would change under the caller: both are refused.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        raise UnexpectedReply("the reply's file is not a memfd") from None
    if seals & _SEALS != _SEALS:
        raise UnexpectedReply(f"the reply's memfd has the seals {seals:#x}, not {_SEALS:#x}")
    size = os.fstat(descriptor).st_size
    layout.check(size)
    if size == 0:
        return layout.view(b"")
    if size < _ALWAYS_MAPPED_BYTES and len(_mappings) >= _MAPPINGS_MAX:
        return layout.view(os.pread(descriptor, size, 0))
    return layout.view(_mapped(descriptor, size))


def _mapped(descriptor: int, size: int) -> memoryview:
    """The bytes of a file, mapped until the last view of them is gone.

    Not by :class:`mmap.mmap`, which keeps a descriptor open as long (before Python 3.13 always): a
    program may have 1,024 of those, and as many results, and may want to keep more.
    """
    # Private, because kernels before 6.7 refuse a shared mapping of what is sealed against writing.
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, 0)
    if address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"{size} bytes of vectors can't be mapped: {os.strerror(number)}")
    content = (ctypes.c_char * size).from_address(address)
    # Who still reads at the end of the program is not to find it gone.
    weakref.finalize(content, _unmap, address, size).atexit = False
    _mappings.add(address)
    return memoryview(content).cast("B").toreadonly()


def _unmap(address: int, size: int) -> None:
    # The other way round a thread could have another there by then.
    _mappings.discard(address)
    _LIBC.munmap(address, size)
