"""Words and numbers of messages and tables."""


def plural(count: int, noun: str) -> str:
    """`count` with its noun, as "1 seed" or "3 seeds"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def signed(value: float, digits: int) -> str:
    """`value` with its sign and `digits` decimals, as "+0.31"; without a sign if it rounds to 0."""
    text = f"{value:+.{digits}f}"
    return text if float(text) else text[1:]
