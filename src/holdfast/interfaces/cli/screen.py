"""Lines and tables: styled on a terminal, plain and never wrapped in a pipe."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.interfaces.cli.phrases import printable

_NO_WRAPPING = 100_000
_NARROWEST_LAST = 12

Cell = str | Text


def console_on(stream: str) -> Console:
    """Return a console on stdout or stderr. Colours only on a terminal, and not when NO_COLOR is set."""
    file = sys.stdout if stream == "stdout" else sys.stderr
    terminal = file.isatty()
    return Console(
        file=file,
        force_terminal=terminal,
        width=None if terminal else _NO_WRAPPING,
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=True,
    )


def styled(text: object, style: str) -> Text:
    """Return foreign text, made harmless, in a style."""
    return Text(printable(text), style=style)


class Screen:
    """Writes to stdout."""

    def __init__(self) -> None:
        self._console = console_on("stdout")

    def line(self, *parts: Cell) -> None:
        """Write one line."""
        self._console.print(*(_cell(part) for part in parts), sep="", soft_wrap=True)

    def heading(self, text: str) -> None:
        """Write the title of a section, after an empty line."""
        self._console.print()
        self.line(styled(text, "bold"))

    def fields(self, rows: Iterable[tuple[str, Cell | None]]) -> None:
        """Write names and values in two columns; a value of None is left out."""
        self.table((), [(styled(name, "dim"), value) for name, value in rows if value is not None])

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Cell]],
        numeric: Sequence[str] = (),
        indent: str = "  ",
    ) -> None:
        """Write aligned columns, by default indented under a heading; those named in `numeric` stand to the right."""
        rows = list(rows)
        table = Table(box=None, show_header=bool(columns), header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
        names = list(columns) or [""] * max((len(row) for row in rows), default=0)
        for from_right, name in zip(range(len(names), 0, -1), names, strict=True):
            # On a narrow terminal the two columns at the right, which hold most text, give way first.
            table.add_column(
                name,
                justify="right" if name in numeric else "left",
                overflow="fold",
                no_wrap=from_right > 2,
                min_width=_NARROWEST_LAST if from_right == 1 and name and name not in numeric else None,
            )
        for row in rows:
            table.add_row(*(_cell(cell) for cell in row))
        with self._console.capture() as captured:
            self._console.print(table, soft_wrap=False)
        for line in captured.get().splitlines():
            self._console.file.write((indent + line).rstrip() + "\n")


def _cell(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(printable(cell))
