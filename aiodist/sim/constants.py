"""What the software costs, apart from the network: the constants of the model, and their file.

The defaults are what `aiodist sim --calibrate` found on 2026-11-26 on two cores of an Intel Xeon (Linux 6.18,
Python 3.11, TCP over loopback), rounded to two digits. `python -m benchmarks speed --only sim` puts
predictions beside real figures.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from aiodist.base.environment.files import write_file
from aiodist.base.errors import UsageError

FORMAT = "aiodist sim constants 2"


@dataclass(frozen=True, slots=True)
class Constants:
    """Seconds, and seconds a byte.

    Args:
        round: from one rank's send between hosts to the other's next step, of a message of few bytes, wires
            aside, where the other looks for it.
        wake: the same, less `round`, where the other sleeps.
        message: each further message that a rank sends or receives in the same round.
        byte: a byte that is sent and received between hosts, at each end; the two ends work at the same time.
        local: an operation between ranks of one host, for each doubling of their number.
        local_byte: a byte that one rank moves through memory.
        issue: the rank's own time for a call: it computes nothing meanwhile.
    """

    round: float = 36e-6
    wake: float = 98e-6
    message: float = 12e-6
    byte: float = 0.18e-9
    local: float = 7.0e-6
    local_byte: float = 0.10e-9
    issue: float = 4.5e-6


def load(name: str) -> Constants:
    """Constants from a file that `save` wrote.

    Raises:
        UsageError: this is none.
    """
    try:
        data = json.loads(Path(name).read_text())
        if data["format"] != FORMAT:
            raise ValueError("another format")
        found = Constants(**{field.name: float(data[field.name]) for field in fields(Constants)})
        if not all(0 <= value < math.inf for value in asdict(found).values()):
            raise ValueError("a constant is not a time")
    except OSError as error:
        raise UsageError(f"cannot read {name!r}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{name} has no constants of a simulation: {error}",
            hint="`aiodist sim --calibrate -o FILE` writes one",
        ) from None
    return found


def text(found: Constants) -> str:
    """Constants as `load` reads them."""
    return json.dumps({"format": FORMAT, **asdict(found)}, indent=1)


def save(found: Constants, name: str) -> None:
    """Write constants to a file."""
    write_file(name, text(found) + "\n")
