"""Which positional encoding models my sequences best, and at what cost?"""

__version__ = "0.2.0"
