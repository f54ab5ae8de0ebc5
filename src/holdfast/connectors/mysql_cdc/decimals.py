"""MySQL's packed form of decimal numbers."""

from collections.abc import Callable, Iterator
from decimal import Context, Decimal

_DIGITS_IN_GROUP = 9
_BYTES_FOR_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_EXACT = Context(prec=65)


def packed_decimal(precision: int, scale: int) -> tuple[int, Callable[[bytes], Decimal]]:
    """Return how many bytes such a number has, and what reads it.

    Its digits stand in groups of nine, four bytes each, with a shorter group outside on both ends. The first bit is
    set unless the number is negative, and then all bits are flipped.
    """
    groups = [*_groups(precision - scale), *reversed(_groups(scale))]
    size = sum(_BYTES_FOR_DIGITS[digits] for digits in groups)
    parts = list(_parts(groups, size, precision))
    sign, every_bit = 1 << 8 * size - 1, (1 << 8 * size) - 1

    def read(data: bytes) -> Decimal:
        packed = int.from_bytes(data, "big") ^ sign
        negative = packed & sign
        if negative:
            packed ^= every_bit
        number = sum((packed >> shift & mask) * factor for shift, mask, factor in parts)
        return Decimal(-number if negative else number).scaleb(-scale, _EXACT)

    return size, read


def _parts(groups: list[int], size: int, digits: int) -> Iterator[tuple[int, int, int]]:
    """Yield for each group where its bits are, and what its number is to be multiplied with."""
    for count in groups:
        size, digits = size - _BYTES_FOR_DIGITS[count], digits - count
        yield 8 * size, (1 << 8 * _BYTES_FOR_DIGITS[count]) - 1, 10**digits


def _groups(digits: int) -> list[int]:
    """Return the sizes of the groups on one side of the point, the outermost one first."""
    whole, rest = divmod(digits, _DIGITS_IN_GROUP)
    return ([rest] if rest else []) + [_DIGITS_IN_GROUP] * whole
