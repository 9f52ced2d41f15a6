"""What the service tells about itself."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from .errors import UnexpectedReply


@dataclass(frozen=True)
class Properties:
    """The properties of ``org.opdbus.Embedding1.Embedder``, read together."""

    dimensions: int
    """Length of one vector; 0 when no model serves."""
    execution_provider: str
    """The provider that verifiably runs; empty when no model serves."""
    fallback_reason: str
    """Why that is not the one asked for; empty where it is."""
    inline_reply_bytes_max: int
    """The largest reply in a message, in bytes of vectors."""
    max_input_tokens: int
    """Tokens that the model reads of one text, special tokens included."""
    model: str
    """The model that serves."""
    precision: str
    """Precision of the arithmetic."""
    requested_execution_provider: str
    """The provider that the settings ask for."""
    state: str
    """``disabled``, ``loading``, ``ready``, ``degraded``, ``draining`` or ``failed``."""
    text_bytes_max: int
    """The most bytes that one text may have, with its prompt."""
    texts_per_call_max: int
    """The most texts in one call to the service; ``embed`` makes several for more."""
    vector_level: str
    """The level in force; empty for an imported model."""
    vector_space: str
    """Fingerprint of the vector space, a dash, and the precision. Keep it with every index."""
    version: str
    """Version of the service."""

    @classmethod
    def from_reply(cls, values: dict[str, Any]) -> Properties:
        """From the reply of ``GetAll``; properties of a newer service are passed over."""
        try:
            return cls(**{field.name: values[_on_the_bus(field.name)] for field in fields(cls)})
        except KeyError as missing:
            raise UnexpectedReply(f"the service has no property {missing}") from None


def _on_the_bus(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
