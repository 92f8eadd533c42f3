"""The figure: the loss of each training, with deaths and without. SVG, for light and dark pages. Pure."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from benchmarks.training.digits.algorithms import ALGORITHMS
from benchmarks.training.digits.compare import WITHIN, Comparison

_LEFT, _WIDTH, _TOP, _ROW = 240, 480, 44, 52
_ALIVE, _DEAD = "#3d8fd1", "#d1495b"
_STYLE = """\
text{font:12px system-ui,sans-serif;fill:#57606a}
.small{font-size:11px;fill-opacity:.8}
.grid{stroke:#8b949e;stroke-opacity:.3}
.band{fill:#8b949e;fill-opacity:.22}
@media (prefers-color-scheme:dark){text{fill:#adb5bd}}"""


def draw(compared: Sequence[Comparison]) -> str:
    """The figure.

    Args:
        compared: a row each.
    """
    ends = [(one.mean - WITHIN * one.deviation, one.mean + WITHIN * one.deviation) for one in compared]
    losses = [outcome.held_out for one in compared for outcome in (*one.without, *one.deaths)]
    low, high = min([*losses, *(end[0] for end in ends)]), max([*losses, *(end[1] for end in ends)])
    step = _step(high - low)
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step

    def place(loss: float) -> float:
        return round(_LEFT + _WIDTH * (loss - low) / (high - low), 1)

    bottom = _TOP + _ROW * len(compared)
    width, height = _LEFT + _WIDTH + 24, bottom + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
        "<title>Loss of trainings in which ranks were killed, beside trainings without deaths</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="band" x="{_LEFT}" y="10" width="22" height="14"/>',
        f'<text x="{_LEFT + 28}" y="21">mean ± {WITHIN:g} σ of:</text>',
        f'<circle cx="{_LEFT + 150}" cy="17" r="4.5" fill="{_ALIVE}"/>',
        f'<text x="{_LEFT + 160}" y="21">no deaths, a seed each</text>',
        _cross(_LEFT + 318, 17),
        f'<text x="{_LEFT + 328}" y="21">ranks killed</text>',
    ]
    for number in range(round((high - low) / step) + 1):
        x = place(low + number * step)
        parts.append(f'<path class="grid" d="M{x} {_TOP - 8}V{bottom}"/>')
        parts.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{low + number * step:.4g}</text>')
    parts.append(
        f'<text x="{_LEFT + _WIDTH / 2:g}" y="{bottom + 36}" text-anchor="middle">'
        "cross entropy on held-out digits</text>"
    )
    for row, (one, (begin, end)) in enumerate(zip(compared, ends, strict=True)):
        y = _TOP + _ROW * row + _ROW // 2
        title = html.escape(ALGORITHMS[one.name].title)
        parts += [
            f'<text x="{_LEFT - 14}" y="{y - 2}" text-anchor="end">{title}</text>',
            f'<text class="small" x="{_LEFT - 14}" y="{y + 13}" text-anchor="end">{one.kills} killed</text>',
            f'<rect class="band" x="{place(begin)}" y="{y - 18}" '
            f'width="{place(end) - place(begin):.1f}" height="36"/>',
            *(
                f'<circle cx="{place(outcome.held_out)}" cy="{y - 8}" r="4.5" fill="{_ALIVE}"/>'
                for outcome in one.without
            ),
            *(_cross(place(outcome.held_out), y + 8) for outcome in one.deaths),
        ]
    return "\n".join([*parts, "</svg>", ""])


def _cross(x: float, y: float) -> str:
    return f'<path stroke="{_DEAD}" stroke-width="2.4" d="M{x - 4:g} {y - 4:g}l8 8m0-8l-8 8"/>'


def _step(span: float) -> float:
    """A round number that is 4 to 10 times in a span."""
    power = 10.0 ** math.floor(math.log10(span))
    return next(power * part for part in (2, 1, 0.5, 0.2, 0.1) if span / (power * part) >= 4)
