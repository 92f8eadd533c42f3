"""argparse with errors of one line, and with options that the environment and underscores reach too."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping
from typing import Any, NoReturn

from aiodist.cli.show import show
from aiodist.environment import switch
from aiodist.errors import UsageError

_HABITS = {"-n": "--nproc-per-node", "-np": "--nproc-per-node"}  # mpirun's


class Parser(argparse.ArgumentParser):
    """A parser that raises `UsageError` where argparse prints its whole usage, and accepts no abbreviations.

    Args:
        prog: 'aiodist run'.
        example: a command line that works, for who gave no positional argument.
        more: as for `argparse.ArgumentParser`.
    """

    def __init__(self, prog: str, *, example: str = "", **more: Any) -> None:
        super().__init__(prog=prog, allow_abbrev=False, **more)
        self._example = example

    def print_help(self, file: Any = None) -> None:
        """Print the help, for argparse."""
        show(self.format_help().rstrip())

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
            raise UsageError(f"there is no option {option}", hint=f"Did you mean {close}?" if close else hint)
        raise UsageError(message, hint=hint)

    def _closest(self, option: str) -> str:
        """The option that was meant, perhaps; '' where nothing is close."""
        known = [name for name in self._option_string_actions if name.startswith("--") and "_" not in name]
        habit = _HABITS.get(option, "")
        if habit in known:
            return habit
        spelled = option.replace("_", "-")
        begins = [name for name in known if len(spelled) > 3 and name.startswith(spelled)]
        return next(iter(begins or difflib.get_close_matches(spelled, known, 1)), "")


class Options:
    """A maker of options in a group of a parser: --a-b is also --a_b, and PET_A_B in the environment.

    Args:
        group: the parser, or one of its groups.
        environ: the environment.
    """

    def __init__(self, group: argparse._ActionsContainer, environ: Mapping[str, str]) -> None:
        self._group = group
        self._environ = environ

    def value(
        self, *names: str, default: str | None, help: str, metavar: str, also: tuple[str, ...] = ()
    ) -> None:
        """An option with a value. `also`: other names of it, which the help does not show."""
        long = self._long(names)
        for variable in (f"PET_{name[2:].replace('-', '_').upper()}" for name in (*also, long)):
            default = self._environ.get(variable, default)
        dest = long[2:].replace("-", "_")
        self._group.add_argument(*names, default=default, help=help, metavar=metavar, dest=dest)
        if hidden := self._hidden(long, *also):
            self._group.add_argument(*hidden, default=argparse.SUPPRESS, help=argparse.SUPPRESS, dest=dest)

    def switch(self, *names: str, help: str) -> None:
        """An option without a value."""
        long = self._long(names)
        dest = long[2:].replace("-", "_")
        default = switch(self._environ, f"PET_{dest.upper()}")
        self._group.add_argument(*names, action="store_true", default=default, help=help, dest=dest)
        if hidden := self._hidden(long):
            self._group.add_argument(
                *hidden, action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS, dest=dest
            )

    @staticmethod
    def _long(names: tuple[str, ...]) -> str:
        return next(name for name in names if name.startswith("--"))

    @staticmethod
    def _hidden(long: str, *also: str) -> list[str]:
        """The spellings that work and are not shown."""
        spelled = [f"--{name[2:].replace('-', '_')}" for name in (long, *also)]
        return [name for name in dict.fromkeys((*also, *spelled)) if name != long]
