"""Legends in a run's manifest."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from .legends import Legend

LEGENDS = TypeAdapter(dict[str, Legend])


def legends_of(manifest: Mapping[str, Any]) -> dict[str, Legend]:
    """The legends in a manifest, by name. Raises ValueError if its entry `portraits` is damaged."""
    try:
        return LEGENDS.validate_python(manifest.get("portraits", {}))
    except ValidationError as error:
        raise ValueError(f"portraits: {error.errors()[0]['msg']}") from error
