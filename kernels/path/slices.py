"""Limits on the memory of the PaTH kernels: what a pass processes at a time and what it saves."""

# Maximum tokens of short and of medium sequences. Short ones favour speed over memory: slices are larger, and
# preprocessed keys and pulled queries are saved for the backward pass.
SHORT, MIDDLE = 2048, 8192


def slice_of(length: int) -> int:
    """Tokens times query heads that the backward pass processes at a time, which limits its temporary memory.

    It falls with the length, because the gradients of chunk products from pairs of chunks grow with it.
    """
    return 2**19 if length <= SHORT else 2**17 if length <= MIDDLE else 3 * 2**15
