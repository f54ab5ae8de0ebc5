"""Draws the results of the pipeline benchmark as a bar chart."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

_COLOURS = {
    "plain, defaults": "#b9c0c9",
    "plain, our settings": "#8d99a8",
    "plain, careful": "#5f6f82",
    "holdfast": "#0b7a75",
}
_BAR, _GAP, _LEFT, _WIDTH = 14, 26, 20, 760


def plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Write an SVG: for each workload the median time of an epoch in every mode, the slowest at full width."""
    parts: list[str] = []
    y = 44
    for result in results:
        parts.append(_text(_LEFT, y, result["workload"]["name"], bold=True))
        y += 8
        slowest = max(ms["median"] for ms in result["epoch_ms"].values())
        for mode, ms in result["epoch_ms"].items():
            width = max(1, round(ms["median"] / slowest * (_WIDTH - 300)))
            parts.append(f'<rect x="{_LEFT}" y="{y}" width="{width}" height="{_BAR - 2}" fill="{_COLOURS[mode]}"/>')
            parts.append(_text(_LEFT + width + 6, y + _BAR - 4, f"{mode}  {ms['median']:.0f} ms"))
            y += _BAR
        y += _GAP
    title = _text(_LEFT, 20, "Median time of an epoch (shorter is better)", bold=True)
    body = "\n".join([f'<rect width="{_WIDTH}" height="{y}" fill="#ffffff"/>', title, *parts])
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" font-family="sans-serif">'
    path.write_text(f"{head}\n{body}\n</svg>\n")


def _text(x: int, y: int, text: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="11"{weight}>{escape(text)}</text>'
