"""How much of a sequence PaTH's kernels take at a time, and what they keep for the backward pass."""

# Tokens of short sequences and of those of middle length, at most. For short ones speed goes before memory: slices are
# larger, and what keys were prepared to and queries pulled back to is kept from the forward to the backward pass.
SHORT, MIDDLE = 2048, 8192


def slice_of(length: int) -> int:
    """Tokens times query heads of the sequences that the backward pass takes at a time: its scratch.

    What far passes leave to the products of chunks grows with the length.
    """
    return 2**19 if length <= SHORT else 2**17 if length <= MIDDLE else 3 * 2**15
