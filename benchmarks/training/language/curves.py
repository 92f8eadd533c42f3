"""The curves of a run as SVG: loss against time and bytes. For light and dark pages. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.training.language.ways import WAYS

COLOURS = {"ddp": "#d1495b", "ddp-int8": "#e09f3e", "diloco": "#3d8fd1", "streaming": "#3fa66b"}
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 330, 250, 50, 50, 60  # of a panel, and around it
_STYLE = """\
text{font:12px system-ui,sans-serif;fill:#57606a}
.grid{stroke:#8b949e;stroke-opacity:.3}
.line{fill:none;stroke-width:2}
@media (prefers-color-scheme:dark){text{fill:#adb5bd}}"""


def draw(runs: Mapping[str, Any]) -> str:
    """The figure.

    Args:
        runs: of each algorithm: `curve`, points with `seconds`, `sent` (bytes of a rank) and `loss`.
    """
    points = [point for run in runs.values() for point in run["curve"][1:]]
    losses: list[float] = [point["loss"] for point in points]
    low, high = math.floor(min(losses) * 5) / 5, math.ceil(max(losses) * 5) / 5
    seconds: float = max(point["seconds"] for point in points)
    least = 10.0 ** math.floor(math.log10(min(point["sent"] for point in points)))
    most: float = max(point["sent"] for point in points)
    decades = math.log10(most / least)

    def level(loss: float) -> float:
        return _TOP + _HEIGHT * (high - loss) / ((high - low) or 1.0)

    def by_time(point: Mapping[str, float]) -> float:
        return _LEFT + _WIDTH * point["seconds"] / seconds

    def by_bytes(point: Mapping[str, float]) -> float:
        share = math.log10(max(point["sent"], least) / least) / decades
        return _LEFT + _WIDTH + _GAP + _WIDTH * share

    width, height = _LEFT + 2 * _WIDTH + _GAP + 20, _TOP + _HEIGHT + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
        "<title>Held-out loss against time, and against the bytes that a rank sends</title>",
        f"<style>{_STYLE}</style>",
    ]
    for number, begin in enumerate((_LEFT, _LEFT + _WIDTH + _GAP)):
        parts.append(
            f'<clipPath id="p{number}"><rect x="{begin}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}"/>'
            "</clipPath>"
        )
        parts.append(f'<text x="{begin - 6}" y="{_TOP - 8}" text-anchor="end">loss</text>')
        for loss in ticks(low, high):
            y = level(loss)
            parts.append(f'<path class="grid" d="M{begin} {y:.1f}h{_WIDTH}"/>')
            parts.append(f'<text x="{begin - 6}" y="{y + 4:.1f}" text-anchor="end">{loss:.3g}</text>')
    bottom = _TOP + _HEIGHT
    parts += [_mark(by_time({"seconds": time}), bottom, f"{time:g}") for time in ticks(0, seconds)]
    powers = range(round(math.log10(least)), math.floor(math.log10(most)) + 1)
    parts += [_mark(by_bytes({"sent": 10.0**power}), bottom, _bytes(power)) for power in powers]
    parts.append(_text(_LEFT + _WIDTH / 2, bottom + 40, "seconds"))
    parts.append(_text(_LEFT + 1.5 * _WIDTH + _GAP, bottom + 40, "bytes that a rank has sent"))
    places: tuple[Callable[[Mapping[str, float]], float], ...] = (by_time, by_bytes)
    for number, (name, run) in enumerate(runs.items()):
        for panel, place in enumerate(places):
            path = "L".join(
                f"{place(point):.1f} {level(point['loss']):.1f}" for point in run["curve"][panel:]
            )
            parts.append(
                f'<path class="line" clip-path="url(#p{panel})" stroke="{COLOURS[name]}" d="M{path}"/>'
            )
        x = _LEFT + 170 * number
        parts.append(f'<path class="line" stroke="{COLOURS[name]}" d="M{x} 20h22"/>')
        parts.append(f'<text x="{x + 28}" y="24">{WAYS[name].label}</text>')
    return "\n".join([*parts, "</svg>", ""])


def ticks(low: float, high: float) -> Sequence[float]:
    """Round numbers from low to high, three to nine of them."""
    rough = (high - low) / 8 or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _mark(x: float, y: float, text: str) -> str:
    return f'<path class="grid" d="M{x:.1f} {y}v-{_HEIGHT}"/>{_text(x, y + 18, text)}'


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{text}</text>'


def _bytes(power: int) -> str:
    unit, rest = divmod(power, 3)
    return f"{10**rest} {('B', 'kB', 'MB', 'GB', 'TB')[unit]}"
