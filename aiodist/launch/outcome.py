"""The verdict as it is stored for those who ask later: `observe.outcome`. Pure."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Sequence
from pathlib import PurePath

from aiodist.base.callers import Whose, short_path, whose
from aiodist.launch.report import (
    headline,
    how_it_ended,
    interrupted,
    on_culprit,
    on_others,
    on_places,
    survived,
)
from aiodist.launch.verdict import Ending, Verdict
from aiodist.net.wire.typed import shown
from aiodist.observe.figures import time_of_day
from aiodist.observe.outcome import Outcome

_CALL = re.compile(r'\s*(?:\| )*File "(.+)", line (\d+),? in (.+)')
_NOTICED = re.compile(r"aiodist: (.+?:\d+ in .+?): ")
_CURRENT = re.compile(r"Current thread 0x")
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


def outcome_of(
    verdict: Verdict,
    run: str,
    command: Sequence[str],
    nnodes: int,
    now: float,
    *,
    before: Sequence[str] = (),
    again: bool = False,
) -> Outcome | None:
    """The outcome of a run; None where nothing has failed.

    Args:
        verdict: on its last attempt.
        run: its number.
        command: of the workers.
        nnodes: of the job.
        now: the time of day, in seconds since 1970.
        before: why earlier attempts have ended, a line each.
        again: another attempt follows.
    """
    culprit, lines, others, advice, error = verdict.culprit, [], list(before), "", ""
    if verdict.code == 0:
        title = survived(verdict)
        culprit = None
        if not title:
            return None
    elif verdict.signum:
        title, lines, culprit = interrupted(verdict), on_places(verdict), None
    else:
        title = headline(verdict)
        lines = [verdict.error] if verdict.error else []
        others += on_others(verdict, nnodes)
        if culprit is None:
            advice = "" if verdict.error else "find out what became of the host, its agent or its network"
        else:
            lines += on_culprit(culprit)
            how = f"{how_it_ended(culprit)} " if culprit.failed or culprit.left else ""
            title = f"{title}: {how}{time_of_day(culprit.wall or now)}"
            place = place_in(culprit.words)
            error = f"{culprit.error} ({place})" if culprit.error and place else culprit.error or place
            advice = _advice(culprit, place)
    return Outcome(
        run=run,
        script=script_of(command),
        size=len({ending.rank for ending in verdict.endings}),
        code=verdict.code,
        ended=now,
        title=shown(title),
        rank=-1 if culprit is None else culprit.rank,
        error=shown(error),
        lines=tuple(map(shown, lines)),
        others=tuple(map(shown, others)),
        advice=shown(advice),
        again=again,
    )


def script_of(command: Sequence[str]) -> str:
    """The name of what workers run: 'train.py'."""
    words = list(command)
    if len(words) > 1 and words[0] == sys.executable:
        words = [word for word in words[1:] if word not in ("-u", "-m")]
    return PurePath(words[0]).name if words else "?"


def place_in(words: Sequence[str]) -> str:
    """The program's innermost line in a traceback, 'train.py:41 in main'; '' where there is none."""
    if noticed := next((found for word in words if (found := _NOTICED.match(word))), None):
        return noticed[1]
    start = next((n for n, word in enumerate(words) if _CURRENT.match(word)), None)
    calls = [found for word in words[start or 0 :] if (found := _CALL.match(word))]
    if start is None:
        calls.reverse()  # of an exception the innermost call is the last, of a crash the first
    calls = [call for call in calls if whose(call[1]) is Whose.program] or calls
    return f"{short_path(calls[0][1])}:{calls[0][2]} in {calls[0][3]}" if calls else ""


def _advice(culprit: Ending, place: str) -> str:
    who = f"rank {culprit.rank}"
    if culprit.left:
        return f"see where {who} ends: every rank has to issue the same operations before it does"
    if not culprit.failed:
        return f"see what {who} does instead of the operation; raise timeout= if it is only slow"
    if culprit.lingered:
        return f"repair what {who} reported; a thread that is no daemon, or an exit handler, kept its process"
    if culprit.symptom:
        return "look at the rank that this error names, and at what the network or its host did"
    if -culprit.code == signal.SIGKILL:
        return f"find out who killed {who}: often the kernel does, out of memory: dmesg on {culprit.host}"
    if -culprit.code in _CRASHES:
        where = f" at {place}" if place else ""
        return f"{who} crashed in native code{where}: see the library that it was in"
    if culprit.code < 0:
        return f"find out who sent {who} this signal: aiodist did not"
    if culprit.error:
        return f"repair what {who} reported; its output has the whole traceback"
    return f"see why {who} ended by itself with exit code {culprit.code}: sys.exit(), os._exit() or a library"
