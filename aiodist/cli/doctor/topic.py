"""The words of a topic: a question to a process of its own, the answer to it, and findings.

A topic is a file here. It examines this machine, and has the pure functions from what was seen to findings.
An examination that may hang or crash, as of drivers and other people's libraries, runs in a process of its
own. Two functions tell `examine` of them:

    questions(machine)          for each of these processes, by a name: what it is to examine
    findings(answers, machine)  lines of the report, from the answers to the questions of all topics

A process that is asked imports the topic's file. So a topic that asks imports at its top only what is light,
and everything else in the function that needs it; this file is light, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from aiodist.base.environment.processor_load import Disturbance

State = Literal["ok", "limited", "missing"]

_LONGEST = 160


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        name: of the thing.
        state: 'ok'; 'limited': it works, or the rest does, and something is lost; 'missing'.
        value: what was found, in a few words.
        cost: what is lost where it is not 'ok'; '' where nothing is.
        fix: the one command, or step, that mends it; '' where nothing can.
    """

    name: str
    state: State
    value: str
    cost: str = ""
    fix: str = ""


class ProcessQuestion(NamedTuple):
    """A question to a process of its own.

    Attributes:
        about: what it is about, in words, for people who wait for the answer.
        examine: a function of a module, which the process calls. It returns facts that JSON can hold; what it
            raises is the answer's trouble.
        arguments: of `examine`.
    """

    about: str
    examine: Callable[..., Mapping[str, Any]]
    arguments: tuple[str, ...] = ()


class ProcessAnswer(NamedTuple):
    """The answer of a process.

    Attributes:
        facts: what it found; {} where it found nothing.
        trouble: why there are no facts, in one line; else ''.
        absent: the module that is not installed, if that is why.
    """

    facts: Mapping[str, Any] = {}
    trouble: str = ""
    absent: str = ""


Answers = Mapping[str, ProcessAnswer]
"""The answers to the questions of all topics, by the questions' names."""


class Machine(NamedTuple):
    """This machine, before anything else is looked at.

    Attributes:
        environ: the environment variables.
        ranks: how many this host is to have.
        limit: seconds for all processes that are asked.
        folder: for what they write; '' where nothing can be written.
        disturbance: the time that others take of the cores; None where the system does not say.
    """

    environ: Mapping[str, str]
    ranks: int
    limit: float = 60.0
    folder: str = ""
    disturbance: Disturbance | None = None


def describe(error: BaseException) -> str:
    """The error at the bottom: libraries wrap the loader's one line into a page of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(f"{type(error).__name__}: {error}".removesuffix(": "))


def one_line(text: str) -> str:
    """Without line breaks and rules, and not too long."""
    text = re.sub(r"[=*-]{4,}", " ", text)
    text = re.sub(r"\s+", " ", text).strip()
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
