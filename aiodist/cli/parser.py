"""argparse with errors of one line, and with options that the environment and underscores reach too."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping
from typing import Any, NoReturn

from aiodist.base.environment import switch
from aiodist.base.errors import UsageError
from aiodist.cli.show import show

# mpirun's words for it, and those of other launchers and of torch.
_WORKERS = (
    *("-n", "-np", "-p", "--np", "--nprocs", "--procs", "--nproc", "--num-procs", "--num-processes"),
    *("--processes", "--world-size", "--size", "--ranks", "--num-ranks", "--workers", "--nworkers"),
    *(
        "--num-workers",
        "--nprocs-per-node",
        "--num-procs-per-node",
        "--ntasks",
        "--ntasks-per-node",
        "--gpus",
    ),
)
_HABITS = dict.fromkeys(_WORKERS, "--nproc-per-node") | dict.fromkeys(
    ("-N", "--num-machines", "--num-nodes", "--nodes"), "--nnodes"
)


DESCRIBE = "\0describe"
"""The command line, of one word that nobody can type, for which a parser raises `DescribedError`."""


class DescribedError(Exception):
    """A command was asked for its parser.

    Attributes:
        parser: with all its options.
    """

    def __init__(self, parser: Parser) -> None:
        super().__init__(parser.prog)
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """A parser that raises `UsageError` where argparse prints its whole usage, and accepts no abbreviations.

    Args:
        prog: 'aiodist run'.
        example: a command line that works, for who gave no positional argument.
        others: options of other programs, and what to write instead.
        more: as for `argparse.ArgumentParser`.
    """

    def __init__(
        self, prog: str, *, example: str = "", others: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(prog=prog, allow_abbrev=False, **more)
        self._example = example
        self._others = others or {}

    def print_help(self, file: Any = None) -> None:
        """Print the help, for argparse."""
        show(self.format_help().rstrip())

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse, for argparse; or say which parser this is."""
        if args == [DESCRIBE]:
            raise DescribedError(self)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise a `UsageError` for an error of argparse's."""
        hint = f"'{self.prog} --help' lists the options"
        missing = message.removeprefix("the following arguments are required: ")
        unknown = message.removeprefix("unrecognized arguments: ")
        if missing != message:
            wanted = missing.partition(",")[0]
            raise UsageError(f"no {wanted} given", hint=f"For example: {self._example}")
        if unknown != message:
            option = unknown.split()[0].partition("=")[0]
            close = self._closest(option)
            hint = self._others.get(option.replace("_", "-")) or (f"Did you mean {close}?" if close else hint)
            raise UsageError(f"there is no option {option}", hint=hint)
        raise UsageError(message, hint=hint)

    def _closest(self, option: str) -> str:
        """The option that was meant, perhaps; '' where nothing is close."""
        known = [name for name in self._option_string_actions if name.startswith("--") and "_" not in name]
        spelled = option.replace("_", "-")
        habit = _HABITS.get(spelled, "")
        if habit in known:
            return habit
        begins = [name for name in known if len(spelled) > 3 and name.startswith(spelled)]
        return next(iter(begins or difflib.get_close_matches(spelled, known, 1)), "")


class CommandOptions:
    """A maker of options in a group of a parser: --a-b is also --a_b, and PET_A_B in the environment.

    Args:
        group: the parser, or one of its groups.
        environ: the environment.
    """

    def __init__(self, group: argparse._ActionsContainer, environ: Mapping[str, str]) -> None:
        self._group = group
        self._environ = environ
        self._added: list[tuple[str, str | None]] = []  # names, and what they are without being given

    def value(
        self,
        name: str,
        default: str | None,
        metavar: str,
        help: str,
        *,
        short: str = "",
        also: tuple[str, ...] = (),
    ) -> None:
        """An option with a value. `also`: other names of it, which the help does not show."""
        self._added.append((name, default))
        for known in (*also, name):
            default = self._environ.get(f"PET_{_attribute(known).upper()}", default)
        self._add(name, short, also, metavar=metavar, default=default, help=help)

    def switch(self, name: str, help: str, *, short: str = "") -> None:
        """An option without a value."""
        self._added.append((name, None))
        default = switch(self._environ, f"PET_{_attribute(name).upper()}")
        self._add(name, short, action="store_true", default=default, help=help)

    def words(self, args: argparse.Namespace) -> list[str]:
        """The words of a command line that give these options the values that they have."""
        found = []
        for name, default in self._added:
            value = getattr(args, _attribute(name))
            if value is True:
                found.append(name)
            elif value is not False and value != default:
                found.append(f"{name}={value}")
        return found

    def _add(
        self, name: str, short: str, also: tuple[str, ...] = (), *, default: object, help: str, **more: Any
    ) -> None:
        """Add the option, and its spellings that work and are not shown."""
        names = [short, name] if short else [name]
        add, dest = self._group.add_argument, _attribute(name)
        add(*names, dest=dest, default=default, help=help, **more)
        spelled = [f"--{_attribute(known)}" for known in (name, *also)]
        if hidden := [known for known in dict.fromkeys((*also, *spelled)) if known != name]:
            add(*hidden, dest=dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **more)


def _attribute(name: str) -> str:
    """'--a-b' → 'a_b'."""
    return name[2:].replace("-", "_")
