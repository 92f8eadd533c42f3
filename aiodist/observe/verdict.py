"""Why a job stands still, from what is seen of its ranks: by majority and program order. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from aiodist.base.errors import name_ranks
from aiodist.base.sanitize import indented, one_line
from aiodist.observe import words
from aiodist.observe.calls import calls_of, circles, crowds
from aiodist.observe.figures import size, span
from aiodist.observe.links import SlowLink, find_slow_link
from aiodist.observe.recorder.reading import Record
from aiodist.observe.straggler import find_straggler
from aiodist.observe.view import Doing, JobView, RankView
from aiodist.observe.waits import MESSAGES, Wait, Waits, orders

AFTER = 30.0
"""Seconds for which an operation is pending before a job counts as standing still."""

MOST = 6  # ranks that are told one by one
FRAMES, TASKS = 6, 12  # lines of a stack, and of the tasks, that are shown

_KINDS = {
    Doing.blocked: "blocked",
    Doing.held: "held",
    Doing.stopped: "stopped",
    Doing.dead: "dead",
    Doing.left: "left",
}
_ADVICE = {
    "blocked": "Move the call off the loop: await asyncio.to_thread(…), or an async library.",
    "held": "A call in C holds the interpreter: it must release it, or run in another process.",
    "stopped": "Resume it: kill -CONT {pid}; a debugger that is attached stops it too.",
    "dead": "Its last output is in its log; 'aiodist explain' reads its record.",
    "left": "It has ended before the others: all ranks must call the same number of operations.",
    "late": "It has not reached this call yet: see what it does instead.",
    "branched": "All members of a group must issue the same operations in the same order.",
    "deadlock": "Issue the operations in the same order on all ranks, or await none before all are issued.",
    "unreceived": "Post the matching recv (same peer, tag and group), or drop the send.",
    "unsent": "Post the matching send (same peer, tag and group), or drop the recv.",
    "moving": "All ranks have joined, and data moves: the network or a receiving peer is slow.",
    "unseen": "Run 'aiodist stacks' on its host. On this host, its log says why it keeps no record.",
    "calls": "A handler that waits for a call counts in its limit=: raise that, or do not call back.",
    "crowded": "See what these handlers do for so long, or raise their limit=.",
    "unanswered": "Give calls a shorter timeout=, ask fewer at once, or see what the handlers wait for.",
    "slow link": "Look at the network between the two hosts: its rate, its losses, other traffic.",
    "straggler": "It computes for longer than the others: look at its data, its host and its clock rate.",
}

KINDS = tuple(_ADVICE)
"""All kinds of verdicts."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a job stands still, or is slow.

    Args:
        kind: one of `KINDS`.
        ranks: that cause it.
        title: in one line.
        lines: the details, in the order in which they are to be read.
        about: what it is about; the same for as long as it is the same trouble.
        place: where in the program that is; the same when it happens there again.
        seconds: for which it has been so; 0.0: not known.
    """

    kind: str
    ranks: tuple[int, ...]
    title: str
    lines: tuple[str, ...]
    about: str
    place: str = ""
    seconds: float = 0.0


def judge(job: JobView, after: float = AFTER) -> tuple[Verdict, ...]:
    """The verdicts on a job; () where all is well.

    Args:
        after: seconds for which an operation has to be pending before anything is said.
    """
    ranks = {rank.rank: rank for rank in job.ranks}
    waits = Waits(job.ranks)
    found: dict[tuple[str, tuple[int, ...]], Verdict] = {}
    blamed: set[int] = set()
    for wait in waits.all:
        waits_for = wait.absent or wait.complete
        if waits_for and wait.seconds >= after and wait.rank not in blamed:
            verdict = _on_wait(wait, waits, ranks)
            found.setdefault((verdict.kind, verdict.ranks), verdict)
            if verdict.kind != "moving":  # who waits there may be who keeps all waiting since it has come
                blamed.update(verdict.ranks)
    moving = any(kind == "moving" for kind, _ in found)
    least = after / 2 if moving else after  # all have come, and one may have stopped since
    for rank in job.ranks:
        stuck = rank.doing in (Doing.blocked, Doing.held, Doing.stopped) and rank.since >= least
        gone = moving and rank.doing is Doing.dead
        if (stuck or gone) and rank.rank not in blamed:
            verdict = _on_stuck(rank, waits, ranks)
            found.setdefault((verdict.kind, verdict.ranks), verdict)
    keys = [key for key in found if key[0] == "moving"]
    for key in keys if len(keys) < len(found) else keys[1:]:
        del found[key]  # what others say is more
    if found and all(kind == "moving" for kind, _ in found):
        link = find_slow_link(job)
        if link is not None:
            return (_on_link(link, ranks),)
    return (*_on_calls(ranks, after), *found.values()) or _on_speed(job, ranks)


def judge_quickly(job: JobView, after: float = AFTER) -> tuple[Verdict, ...]:
    """The verdicts for which a part of the last operations will do: on calls that wait, else on what makes a
    job slow in which nothing stands still."""
    ranks = {rank.rank: rank for rank in job.ranks}
    return tuple(_on_calls(ranks, after)) or _on_speed(job, ranks)


def _on_calls(ranks: dict[int, RankView], after: float) -> Iterator[Verdict]:
    """The verdicts on calls that wait for each other, and on ranks that answer so few that others wait."""
    standing: set[int] = set()
    for circle in circles(ranks, after):
        standing.update(call.rank for call in circle)
        names = sorted({call.rank for call in circle})
        seconds = min(max(0.0, ranks[call.rank].now - call.since) for call in circle)
        who = f"{name_ranks(names)} wait" if len(names) > 1 else f"rank {names[0]} waits for itself"
        how = " for each other's answers" if len(names) > 1 else ""
        rest = [
            f"{call.by!r} of rank {caller} waits for {call.name!r} of rank {call.rank}"
            f"{', which runs there as often as its limit allows' if call.full else ''}"
            for caller, call in zip([circle[-1].rank, *(one.rank for one in circle)], circle, strict=False)
        ]
        about = f"calls {names} {sorted(call.name for call in circle)}"
        found = _verdict("calls", names, f"{who}{how}, for {span(seconds)}", "\n".join(rest), ranks)
        yield replace(found, about=about, place=about, seconds=seconds)
    for (rank, name), those in crowds(ranks, after).items():
        if rank in standing:
            continue
        seconds = max(ranks[caller].now - call.since for caller, call in those)
        who = name_ranks(sorted(caller for caller, _ in those))
        title = (
            f"{who} {'wait' if len(those) > 1 else 'waits'} for {name!r} of rank {rank}, "
            f"which runs there as often as its limit allows, and slowly, for {span(seconds)}"
        )
        about = f"crowded {rank} {name}"
        found = _verdict("crowded", [rank], title, "", ranks)
        yield replace(found, about=about, place=about, seconds=seconds)
    for rank, view in ranks.items():
        for one in calls_of(view).room:
            seconds = view.now - one.since
            if seconds < after:
                continue
            waiting = sum(call.count for call in calls_of(view).to if call.rank == one.rank)
            title = (
                f"{waiting} calls of rank {rank} to rank {one.rank} have no answer, "
                f"and {one.count} more wait until one has, for {span(seconds)}"
            )
            about = f"unanswered {rank} {one.rank}"
            found = _verdict("unanswered", [one.rank], title, "", ranks)
            yield replace(found, about=about, place=about, seconds=seconds)


def _on_speed(job: JobView, ranks: dict[int, RankView]) -> tuple[Verdict, ...]:
    """The verdict on what makes a job slow in which nothing stands still; () where nothing does."""
    link = find_slow_link(job)
    if link is not None:
        return (_on_link(link, ranks),)
    slow = find_straggler(job)
    if slow is None:
        return ()
    title = (
        f"rank {slow.rank} came last in {slow.last} of the last {slow.seen} operations; "
        f"the others waited {span(slow.lost)} in total for it ({slow.share:.0%} of their time)"
    )
    rest = "" if slow.line is None else f"it comes late to {words.place(slow.line)}"
    return (_verdict("straggler", [slow.rank], title, rest, ranks),)


def _on_stuck(rank: RankView, waits: Waits, ranks: dict[int, RankView]) -> Verdict:
    """The verdict on a rank that something else than an operation keeps from going on: by the operation in
    which others wait for it, where there is one."""
    for wait in waits.all:
        if waits.causes(wait) == (rank.rank,):
            return _on_wait(wait, waits, ranks)
    kind = _KINDS[rank.doing]
    for wait in waits.all:
        if wait.complete and wait.rank != rank.rank and rank.rank in _sides(wait):
            return _verdict(kind, [rank.rank], _pending(wait), _where(wait), ranks, wait)
    return _verdict(kind, [rank.rank], f"rank {rank.rank}: {words.doing(rank)}", "", ranks)


def _on_link(link: SlowLink, ranks: dict[int, RankView]) -> Verdict:
    there = ranks.get(link.peer)
    title = (
        f"the connection from rank {link.rank} ({words.reported(ranks[link.rank].host)}) to rank {link.peer}"
        f"{f' ({words.reported(there.host)})' if there else ''} is slow: {size(link.rate)}/s, "
        f"while other connections reach {size(link.usual)}/s"
    )
    rows = [
        f"it was at work in {link.busy:.0%} of the time; a round trip takes {span(link.rtt)}",
        f"→ {_ADVICE['slow link']}",
    ]
    pair = (link.rank, link.peer)
    return Verdict("slow link", pair, title, tuple(rows), f"slow link {pair}")


def _on_wait(wait: Wait, waits: Waits, ranks: dict[int, RankView]) -> Verdict:
    """The verdict on something that has been pending for too long."""
    if not wait.absent:
        return _on_moving(wait, ranks)
    if set(wait.absent) == {wait.rank}:
        return _on_message(wait, [], ranks)
    causes = waits.causes(wait)
    if not causes:
        return _on_circle(waits.circle(wait), waits, ranks)
    if not set(causes) & set(wait.absent):  # it waits for those who wait for these
        wait = waits.waiting_for(causes)[0]
    causes = tuple(rank for rank in causes if rank in wait.absent)
    wait = _the_message(wait, waits, causes) or wait
    kind = min((_kind(ranks.get(rank)) for rank in causes), key=_WORST.index)
    moving = next((one for one in waits.all if one.rank in causes and one.complete), None)
    if kind == "late" and moving is not None and moving.seconds >= wait.seconds:
        return _on_moving(moving, ranks)
    rows = list(_who_waits(wait, waits.waiting_for(causes)))
    if kind in ("late", "left"):
        if wait.record.op in MESSAGES:
            return _on_message(wait, rows, ranks)
        other = _branch(wait.record, causes[0], ranks)
        if other:
            kind = "branched"
            rows.append(other)
    return _verdict(kind, list(causes), _title(wait, causes), "\n".join(rows), ranks, wait)


def _the_message(wait: Wait, waits: Waits, causes: Sequence[int]) -> Wait | None:
    """The message by which a cause holds up a rank that has therefore not come to a collective. It says more
    than the collective, which waits for both: the message is what does not fit."""
    if wait.record.op in MESSAGES or len(causes) > 1:
        return None
    held = (one for one in waits.waiting_for(causes) if one.record.op in MESSAGES and one.rank in wait.absent)
    return next(held, None)


def _kind(rank: RankView | None) -> str:
    return "unseen" if rank is None else _KINDS.get(rank.doing, "late")


_WORST = ("dead", "stopped", "held", "blocked", "left", "unseen", "late")


def _title(wait: Wait, causes: Sequence[int]) -> str:
    many = len(wait.record.group.ranks) if wait.record.group else 0
    of = f" of {many}" if many > 2 and wait.record.op not in MESSAGES else ""
    return f"{_what(wait)} has waited {span(wait.seconds)} for {name_ranks(list(causes))}{of}"


def _what(wait: Wait) -> str:
    data = words.payload(wait.record)
    return f"{words.operation(wait.record)} ({data})" if data else words.operation(wait.record)


def _on_moving(wait: Wait, ranks: dict[int, RankView]) -> Verdict:
    return _verdict("moving", [wait.rank], _pending(wait), _where(wait), ranks, wait)


def _pending(wait: Wait) -> str:
    return f"{_what(wait)} has been pending for {span(wait.seconds)} although all ranks have joined it"


def _sides(wait: Wait) -> tuple[int, ...]:
    """The ranks that carry out the operation together."""
    record = wait.record
    if record.group is None:
        return ()
    return (record.group.ranks[record.root],) if record.op in MESSAGES else tuple(record.group.ranks)


def _on_message(wait: Wait, rows: list[str], ranks: dict[int, RankView]) -> Verdict:
    """The verdict on a message whose other side was not issued."""
    (peer,) = wait.absent
    other = words.message(replace(wait.record, op=MESSAGES[wait.record.op]))[0]
    missing = f"rank {peer} has issued no {other} that fits"
    kind = "unreceived" if wait.record.op == "send" else "unsent"
    return _verdict(kind, [peer], _title(wait, [peer]), missing, ranks, wait, first=rows[:1], then=rows[1:])


def _on_circle(circle: list[Wait], waits: Waits, ranks: dict[int, RankView]) -> Verdict:
    """The verdict on ranks of which each waits for the next."""
    messages = [wait for wait in circle if wait.record.op in MESSAGES]
    if messages and len(messages) < len(circle):  # others wait in collectives: it is the message that is odd
        wait = min(messages, key=lambda one: -one.seconds)
        return _on_message(wait, list(_who_waits(wait, waits.waiting_for(wait.absent))), ranks)
    since = span(max(wait.seconds for wait in circle))
    names = sorted(wait.rank for wait in circle)
    first = waits.first()
    keys = Counter(map(_key, first.values()))
    most, count = keys.most_common(1)[0]
    apart = [rank for rank in names if _key(first[rank]) != most]
    if len(apart) == 1 and 2 * count > len(first):
        others = [wait for wait in first.values() if _key(wait) == most]
        title = f"rank {apart[0]} takes another branch than most other ranks, for {since}"
        who = name_ranks(sorted(one.rank for one in others))
        verb = "wait" if len(others) > 1 else "waits"
        rest = f"{who} {verb} in {words.operation(others[0].record)}{words.at(others[0].record.line)}"
        return _verdict("branched", apart, title, rest, ranks)
    return _verdict("deadlock", names, f"{name_ranks(names)} wait for each other, for {since}", "", ranks)


def _key(wait: Wait) -> tuple[object, ...]:
    record = wait.record
    return record.group, record.op, record.number, *((wait.rank,) if record.op in MESSAGES else ())


def _verdict(
    kind: str,
    causes: list[int],
    title: str,
    rest: str,
    ranks: dict[int, RankView],
    wait: Wait | None = None,
    *,
    first: Sequence[str] = (),
    then: Sequence[str] = (),
) -> Verdict:
    lines = list(first)
    for number in causes[:MOST]:
        rank = ranks.get(number)
        if rank is None:
            lines.append(f"rank {number}: its state is not visible from here")
        elif kind != "moving":
            lines.append(f"rank {number} ({words.where(rank)}): {words.doing(rank)}")
            lines += _stacks(rank)
            lines += _events(rank)
    if len(causes) > MOST:
        lines.append(f"… and {len(causes) - MOST} more ranks")
    lines += [*rest.splitlines(), *then]
    about = f"{kind} {causes} {_about(causes, ranks, wait) if kind != 'straggler' else ''}"
    those = [ranks[one] for one in causes if one in ranks and _kind(ranks[one]) == kind]
    pid = str(those[0].recording.pid) if those else "PID"
    lines.append(f"→ {_ADVICE[kind].format(pid=pid)}")
    place = f"{kind} {causes} {_place(causes, ranks, wait)}"
    seconds = wait.seconds if wait is not None else max((one.since for one in those), default=0.0)
    return Verdict(kind, tuple(causes), title, tuple(lines), about, place, seconds)


def _place(causes: list[int], ranks: dict[int, RankView], wait: Wait | None) -> str:
    """The line of the program that waits, and of a message its two ranks; else the lines of the causes."""
    if wait is None:
        return ", ".join(words.place(one.line) for one in _last(causes, ranks))
    pair = wait.rank if wait.record.op in MESSAGES else ""
    return f"{wait.record.op} {words.place(wait.record.line)} {pair}"


def _about(causes: list[int], ranks: dict[int, RankView], wait: Wait | None) -> str:
    """The operation that is pending, or the point of the program at which the causes are: a verdict about the
    same one is given once. What the causes do meanwhile in other groups makes it no other trouble."""
    if wait is not None:
        return repr(_key(wait))
    return ", ".join(f"{one.op} {one.number} {one.group and one.group.name}" for one in _last(causes, ranks))


def _last(causes: list[int], ranks: dict[int, RankView]) -> list[Record]:
    """The last operation of each of these ranks, where it has issued one."""
    last = (ranks[one].last for one in causes if one in ranks)
    return [one for one in last if one is not None]


def _stacks(rank: RankView) -> Iterator[str]:
    """Where a rank is. Of a loop that turns its own stack says nothing: what counts are its tasks, or, where
    the program runs in another thread, the threads beside it."""
    stacks = rank.stacks
    if stacks is None:
        return
    turns = rank.doing in (Doing.running, Doing.waiting)
    title, lines = ("its tasks", stacks.tasks) if stacks.tasks else ("its threads", stacks.others)
    if not (turns and lines):
        yield from (f"    {one_line(frame, 160)}" for frame in stacks.thread[:FRAMES])
        return
    yield f"  {title}:"
    yield from (f"    {indented(row, 140)}" for row in lines[:TASKS])
    if len(lines) > TASKS:
        yield f"    … {len(lines) - TASKS} lines more: aiodist stacks"


def _events(rank: RankView) -> Iterator[str]:
    for event in rank.recording.events[-2:]:
        yield f"  {span(max(0.0, rank.now - event.at))} ago: {one_line(event.text, 200)}"


def _where(wait: Wait) -> str:
    where = words.at(wait.record.line)
    return f"issued{where}" if where else ""


def _who_waits(wait: Wait, others: list[Wait]) -> Iterator[str]:
    """Who waits in what for the same ranks, a line for each operation; the one that is told first."""
    by: dict[tuple[object, ...], list[Wait]] = {_key(wait): [wait]}
    for one in others:
        if one == wait:
            continue
        by.setdefault(_key(one), []).append(one)
    for key, those in list(by.items())[:MOST]:
        names = name_ranks(sorted({one.rank for one in those}))
        what = "it" if key == _key(wait) else words.operation(those[0].record)
        yield f"{names} {'wait' if len(those) > 1 else 'waits'} in {what}{words.at(those[0].record.line)}"


def _branch(record: Record, rank: int, ranks: dict[int, RankView]) -> str:
    """Where a rank's order of collectives departs from that of most others; '' where it does not."""
    if record.group is None:
        return ""
    issued = orders(ranks, record.group)
    own = issued.pop(rank, {})
    for number in sorted(own):
        others = [order[number] for order in issued.values() if number in order]
        if 2 * len(others) <= len(record.group.ranks) - 1 or not others:
            continue
        ways = Counter((one.called or one.op, one.line) for one in others)
        (op, where), count = ways.most_common(1)[0]
        mine = own[number]
        own_op = mine.called or mine.op
        if 2 * count > len(others) and (own_op, mine.line) != (op, where):
            return (
                f"it differs from the others from #{words.nth(mine)}: it issued {words.reported(own_op)} at "
                f"{words.place(mine.line) or '?'}, {count} of the others {op} at {words.place(where) or '?'}"
            )
    return ""
