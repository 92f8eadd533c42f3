"""The verdict as text: the last lines that a failed or mended job writes. Pure.

Names, errors and last lines come from workers and from other nodes: in the box they are lines without orders
to the terminal, and no more than fit there. (What workers write themselves is shown as it is.)
"""

from __future__ import annotations

import re
import signal

from aiodist.base.environment.process import signal_name
from aiodist.base.errors import name_ranks
from aiodist.base.terminal import painter
from aiodist.launch.verdict import Ending, Verdict, lost_nodes
from aiodist.net.wire.typed import shown

_HINTS = {
    signal.SIGKILL: "aiodist did not send it; often the kernel does, out of memory: see dmesg",
    signal.SIGSEGV: "it crashed in native code",
    signal.SIGBUS: "it crashed in native code, or there is no room left in /dev/shm",
    signal.SIGABRT: "native code gave up; the last lines say why",
    signal.SIGILL: "a library is built for another processor",
}
# Where an error of a group ends and its hint begins, which the box itself makes superfluous.
_WITHOUT_HINT = re.compile(r"(.*\(in \w+(?: #\d+)? of group '.*?'\))\. ")
_INTERRUPTED = "interrupted at "  # begins the line in which a rank says where Ctrl-C found it
_KEPT_WAITING = "kept the others waiting"
_LEFT = "ended while others needed it"
_MOST_WORDS = 40  # last lines of a worker, which its agent has chosen
_MOST_LOST = 64  # rows about lost nodes
_MOST_WAYS = 5  # rows about others; ranks that were in many different operations would fill the screen


def render(verdict: Verdict, *, nnodes: int = 1, colour: bool = False, width: int = 80) -> str:
    """The lines to show at the end, each ended by a newline; '' for a job in which nothing failed.

    Args:
        verdict: of the job.
        nnodes: nodes of the job; with more than one, every rank is shown with its host.
        colour: whether to use terminal colours.
        width: of the rule above and below; text is never cut.
    """
    if verdict.code == 0:
        return shown(f"aiodist run: {survived(verdict)}") + "\n" if survived(verdict) else ""
    if verdict.signum:
        rows = [f"aiodist run: {interrupted(verdict)}; exit code {verdict.code}", *on_places(verdict)]
        return "".join(f"{shown(row)}\n" for row in rows)
    rows = [verdict.error, ""] if verdict.error else []
    if verdict.culprit:
        rows += [*on_culprit(verdict.culprit), ""]
    rows += on_others(verdict, nnodes)
    rows.append(f"exit code {verdict.code}")
    top = f"╭─ aiodist run: {headline(verdict)} "
    top += "─" * max(0, width - len(top))
    bottom = "╰" + "─" * max(0, width - 1)
    paint = painter(colour)
    top, bottom, bar = paint("red", paint("bold", top)), paint("red", bottom), paint("red", "│")
    body = "".join(f"{bar} {shown(row)}".rstrip() + "\n" for row in rows)
    return f"{top}\n{body}{bottom}\n"


def headline(verdict: Verdict) -> str:
    """The first failure of a job that failed: 'rank 2 failed first', 'node 1 was lost'."""
    culprit = verdict.culprit
    if culprit is not None:
        how = "failed first" if culprit.failed else _LEFT if culprit.left else _KEPT_WAITING
        return f"{name_ranks([culprit.rank])} {how}"
    if missed := [node for node in verdict.lost if node not in verdict.spared]:
        return lost_nodes(missed[:_MOST_LOST], "was")
    return "the job was cut short"


def how_it_ended(ending: Ending) -> str:
    """'exit code 7', 'killed by SIGSEGV'."""
    if ending.lingered:
        return "an error of its own; it did not end, and was stopped"
    return f"exit code {ending.code}" if ending.code >= 0 else f"killed by {signal_name(-ending.code)}"


def why_it_ended(culprit: Ending) -> str:
    """'rank 1 failed (exit code 7)', 'rank 1 kept the others waiting': why an attempt has ended."""
    how = f"failed ({how_it_ended(culprit)})" if culprit.failed else _LEFT if culprit.left else _KEPT_WAITING
    return f"rank {culprit.rank} {how}"


def _count(number: int, what: str) -> str:
    """'1 restart', '2 restarts'."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def survived(verdict: Verdict) -> str:
    """The failures that a job has survived: 'the job ended well after 1 restart'; '': nothing failed."""
    without = [
        f"{name_ranks([e.rank])} ({how_it_ended(e)} after {e.at_ns / 1e9:.2f} s · host {e.host})"
        for e in verdict.endings
        if e.forgiven
    ]
    without += [f"node {node} (lost)" for node in verdict.spared]
    parts = [f"after {_count(verdict.restarts, 'restart')}"] if verdict.restarts else []
    if without:
        hidden = len(without) - _MOST_WAYS
        named = ", ".join(without[:_MOST_WAYS]) + (f" and {hidden} more" if hidden > 0 else "")
        parts.append(f"without {named}")
    return f"the job ended well {', '.join(parts)}" if parts else ""


def on_culprit(ending: Ending) -> list[str]:
    """Lines on the worker that the verdict names."""
    where = f"host {ending.host}, local rank {ending.local_rank}, pid {ending.pid}"
    if ending.left:
        after = f"exit code 0 after {ending.at_ns / 1e9:.2f} s"
        rows = [f"{after} · {where}", "every rank has to issue the same operations: see where that one ends"]
        return rows + (
            ["the last error that it wrote:", "", *ending.words[:_MOST_WORDS]] if ending.error else []
        )
    if not ending.failed:
        what = ending.doing[:_MOST_WORDS] or ["what it did is not known"]
        return [f"the others waited for it; it was stopped · {where}", *what]
    rows = [f"{how_it_ended(ending)} after {ending.at_ns / 1e9:.2f} s · {where}"]
    if -ending.code in _HINTS and not ending.lingered:
        rows.append(_HINTS[signal.Signals(-ending.code)])
    rows += ["", *ending.words[:_MOST_WORDS]] if ending.words else ["it wrote nothing to stderr"]
    return rows


def on_others(verdict: Verdict, nnodes: int) -> list[str]:
    """One line for each way that other ranks ended: failures, what others noticed of them, the rest; and on
    lost nodes and restarts."""
    ways: dict[str, list[Ending]] = {}
    for ending in (*verdict.failures, *verdict.endings):
        if ending is verdict.culprit or any(ending in seen for seen in ways.values()):
            continue
        ways.setdefault(_way(ending, verdict.culprit), []).append(ending)
    rows = []
    for way, endings in list(ways.items())[:_MOST_WAYS]:
        on = f" on {', '.join(sorted({e.host for e in endings}))}" if nnodes > 1 else ""
        rows.append(f"{name_ranks(sorted({e.rank for e in endings}))}{on}{way}")
    if rest := [e.rank for endings in list(ways.values())[_MOST_WAYS:] for e in endings]:
        rows.append(f"{name_ranks(rest)} ended in other ways; see above")
    lost = "lost; its agent ended or became unreachable without a report"
    rows += [
        f"node {node}{', which hosts the job' if node == 0 else ''}: {lost}"
        + ("; the job went on without it" if node in verdict.spared else "")
        for node in verdict.lost[:_MOST_LOST]
    ]
    if 0 in verdict.lost and verdict.limit:
        rows.append("if the agent of node 0 still runs, start the one of this node again, to take part")
    if verdict.limit:
        were = "was" if verdict.limit == 1 else "were"
        rows.append(f"{verdict.restarts} of {_count(verdict.limit, 'restart')} {were} used")
    return rows


def _way(ending: Ending, culprit: Ending | None) -> str:
    """The text on a rank, after its name; an error that the box has shown already is not said again."""
    if (
        ending.symptom and not ending.restarted and ending.asked != signal.SIGKILL
    ):  # perhaps it was still on its way out
        return f" noticed: {_noticed(ending.error)}"
    if ending.failed:
        again = "; started again" if ending.restarted else ""
        same = culprit is not None and ending.error == culprit.error
        error = ", by the same error" if same else f" · {ending.error}"
        return f": {how_it_ended(ending)}{error if ending.error else ''}{again}"
    if ending.stopped:
        ignored = ", since it did not end on SIGTERM" if ending.asked == signal.SIGKILL else ""
        return f": stopped by aiodist run ({signal_name(ending.asked)}{ignored})"
    return ": ended well"


def _noticed(error: str) -> str:
    """'PeerLost: lost rank 2: … (in …). What to do.' → 'lost rank 2: … (in …)'."""
    kind, _, said = error.partition(": ")
    match = _WITHOUT_HINT.match(said)
    return match.group(1) if match else said or kind


def interrupted(verdict: Verdict) -> str:
    """The operator's signal, and its effect: 'stopped by SIGINT: all 4 worker(s) have ended'."""
    forced = [e.rank for e in verdict.endings if e.asked == signal.SIGKILL]
    more = f"; {name_ranks(forced)} had to be killed" if forced else ""
    count = len({ending.rank for ending in verdict.endings})  # who was restarted has several
    return f"stopped by {signal_name(verdict.signum)}: all {count} worker(s) have ended{more}"


def on_places(verdict: Verdict) -> list[str]:
    """Where Ctrl-C found the ranks, a line for each place."""
    places: dict[str, list[int]] = {}
    for ending in verdict.endings:
        for word in ending.words:
            if word.startswith(_INTERRUPTED):
                places.setdefault(word.removeprefix(_INTERRUPTED), []).append(ending.rank)
    rows = [f"  {name_ranks(ranks)} at {place}" for place, ranks in list(places.items())[:_MOST_WAYS]]
    if rest := [rank for ranks in list(places.values())[_MOST_WAYS:] for rank in ranks]:
        rows.append(f"  {name_ranks(rest)} at other lines")
    return rows
