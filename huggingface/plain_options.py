"""Options without checks, in place of core/options.py in exported code, which then does not need pydantic.

The export has checked the values in config.json.
"""

Count = Natural = Layers = int
Positive = NonNegative = Share = Below1 = float
Place = str


class Options:
    """Base class of frozen dataclasses that declare options."""
