"""What a command line may go on with: commands, options, choices, jobs. Pure, but for the names of jobs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence

from aiodist.cli.parser import Parser

Offer = tuple[str, str]
"""A word, and what it is, in a few words."""

_JOB = "JOB"  # the metavar of jobs
_ENDLESS = ("*", "+", argparse.REMAINDER)  # numbers of arguments


def offers(
    words: Sequence[str],
    commands: Mapping[str, str],
    parser_of: Callable[[str], Parser],
    jobs: Callable[[], Iterable[Offer]],
) -> list[Offer]:
    """The words that may stand in the place of the last one; none where a file is meant, or nothing is known.

    Args:
        words: behind 'aiodist'; the last one has only begun, and may be ''.
        commands: names, and what they do.
        parser_of: the parser of a command.
        jobs: called for the jobs of this host, where one may stand.
    """
    *before, begun = words or [""]
    if not before or before == ["help"]:
        found: Iterable[Offer] = commands.items()
    elif before[0] not in commands:
        found = ()
    else:
        parser = parser_of(before[0])
        actions = _options(parser)
        name, equals, _ = begun.partition("=")
        wanted = _open_option(before[1:], actions)
        behind = _place(before[1:], actions, parser)
        if behind == argparse.REMAINDER:  # what a script is handed
            found = ()
        elif equals and name in actions:
            found = [(f"{name}={value}", text) for value, text in _values(actions[name], jobs)]
        elif wanted is not None and not (begun.startswith("-") and wanted.nargs in ("?", *_ENDLESS)):
            found = _values(wanted, jobs)
        elif begun.startswith("-"):
            found = [
                (option, _one_line(action.help))
                for option, action in actions.items()
                if action.help is not argparse.SUPPRESS and option.startswith("--") and "_" not in option
            ]
        else:
            found = () if behind is None else _values(behind, jobs)
    return [offer for offer in found if offer[0].startswith(begun)]


def _options(parser: Parser) -> dict[str, argparse.Action]:
    return {name: action for action in parser._actions for name in action.option_strings}


def _open_option(words: Sequence[str], options: Mapping[str, argparse.Action]) -> argparse.Action | None:
    """The option whose value comes next, or may."""
    for distance, word in enumerate(reversed(words), 1):
        if word.startswith("-"):
            action = options.get(word)
            if action is None or action.nargs == 0:
                return None
            most = action.nargs if isinstance(action.nargs, int) else 1
            return action if distance <= most or action.nargs in _ENDLESS else None
    return None


def _place(
    words: Sequence[str], options: Mapping[str, argparse.Action], parser: Parser
) -> argparse.Action | str | None:
    """The positional argument that comes next; REMAINDER behind the last one; None: there is none."""
    places = [action for action in parser._actions if not action.option_strings]
    given, left = 0, 0  # positional arguments that are there; values that the last option still takes
    for word in words:
        if word.startswith("-") and word != "-":
            action = options.get(word)
            takes = 0 if action is None or action.nargs == 0 else action.nargs
            left = takes if isinstance(takes, int) else len(words) if takes in _ENDLESS else 1
        elif left:
            left -= 1
        else:
            given += 1
    if given >= len(places):
        return None
    return argparse.REMAINDER if places[given].nargs == argparse.REMAINDER else places[given]


def _values(action: argparse.Action | str, jobs: Callable[[], Iterable[Offer]]) -> Iterable[Offer]:
    if isinstance(action, str):
        return ()
    if action.choices is not None:
        return [(str(choice), "") for choice in action.choices]
    return jobs() if action.metavar == _JOB else ()


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("%%", "%")
