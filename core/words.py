"""Words of messages and tables."""


def plural(count: int, noun: str) -> str:
    """`count` with its noun, as "1 seed" or "3 seeds"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
