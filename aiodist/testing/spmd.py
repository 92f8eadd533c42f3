"""`@spmd(world_size=4)`: an async test function that runs on as many real processes.

    from aiodist.testing import spmd

    @spmd(world_size=4)
    async def test_sum(pg):
        assert (await pg.all_reduce(np.array([pg.rank])))[0] == 6

pytest sees a plain test. It starts the processes, gives each a rank, a store on loopback and a secret,
waits with a time limit, and fails with the traceback of the rank that failed first. Arguments other
than `pg` come from fixtures and `pytest.mark.parametrize`, and are pickled for the ranks; those named
`world_size`, `transport`, `timeout` and `backend` override the decorator's.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Never, overload

from aiodist.testing.options import SpmdOptions
from aiodist.testing.outcome import RanksFailed as RanksFailed

__tracebackhide__ = True  # pytest shows the line of the decorator
_SIZE_NAMES = ("nprocs", "size", "n", "ranks", "nranks", "num_processes", "processes", "np")
Test = Callable[..., None]


@overload
def spmd(world_size: Callable[..., Any], /) -> Test: ...


@overload
def spmd(
    world_size: int = ...,
    *,
    transport: str = ...,
    timeout: float = ...,
    exits: Mapping[int, int] | None = ...,
    env: Mapping[str, str] | None = ...,
    hosts: int = ...,
    backend: str = ...,
) -> Callable[[Callable[..., Any]], Test]: ...


def spmd(
    world_size: int | Callable[..., Any] = 2,
    *,
    transport: str = "auto",
    timeout: float = 120.0,
    exits: Mapping[int, int] | None = None,
    env: Mapping[str, str] | None = None,
    hosts: int = 1,
    backend: str = "",
    **unknown: Never,
) -> Any:
    """Run an async test function on real processes. `@spmd` alone is `@spmd()`.

    Args:
        world_size: number of processes.
        transport: AIODIST_TRANSPORT: 'auto', 'shm' or 'tcp'.
        timeout: seconds for all of it; then the test fails, and says what every rank does.
        exits: exit codes that are expected, by rank (-9: killed by SIGKILL); 0 for all others.
        env: further environment variables.
        hosts: how many hosts the ranks are on, as many on each, in order: network namespaces (`Hosts`). More
            than one needs root, and the test is skipped without.
        backend: as for `init_process_group`; '' for None.

    Raises:
        UsageError: an argument has no meaning.
        TypeError: ranks could not call the function, or find it.
    """
    for name in unknown:
        instead = "write world_size=…" if name in _SIZE_NAMES else f"it takes {', '.join(_NAMES)}"
        raise TypeError(f"spmd has no argument {name!r}: {instead}")
    if callable(world_size):
        return spmd()(world_size)
    options = SpmdOptions(world_size, transport, timeout, _or_none(exits), _or_none(env), hosts, backend)
    options.check()

    def decorate(function: Callable[..., Any]) -> Test:
        method, parameters = _parameters(function)

        @functools.wraps(function)
        def test(*given: Any, **arguments: Any) -> None:
            from aiodist.testing.run import run

            itself, rest = given[:method], given[method:]
            names = [one.name for one in parameters[method:]]
            if len(itself) != method or len(rest) > len(names):
                raise TypeError(f"{function.__name__} takes its arguments by name; `pg` is made for it")
            run(function, options, {**dict(zip(names, rest, strict=False)), **arguments}, *itself)

        test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        test.spmd_function = function  # type: ignore[attr-defined]
        return test

    return decorate


def _or_none(given: Mapping[Any, Any] | None) -> Mapping[Any, Any]:
    return {} if given is None else given


_NO_HYPOTHESIS = (
    "{name} has @given below @spmd: put @given above it, with @settings(deadline=None, max_examples=10), "
    "since each example starts the processes anew"
)
_NAMES = [name for name in inspect.signature(spmd).parameters if name != "unknown"]
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


def _parameters(function: Any) -> tuple[bool, list[inspect.Parameter]]:
    """Whether a function is a method, and the parameters that pytest is to see.

    Raises:
        TypeError: ranks could not call it, or find it.
    """
    name = getattr(function, "__qualname__", None) or repr(function)
    if isinstance(function, (staticmethod, classmethod)):
        raise TypeError(f"@spmd stands below @{type(function).__name__} on {name}: make it a plain method")
    if isinstance(function, type) or not inspect.isroutine(function):
        raise TypeError(f"@spmd wants an async function, got {name}: decorate each test, not a class")
    if hasattr(function, "spmd_function"):
        raise TypeError(f"{name} has @spmd twice: leave one, and parametrize `world_size` for several sizes")
    if getattr(function, "is_hypothesis_test", False):
        raise TypeError(_NO_HYPOTHESIS.format(name=function.__name__))
    if inspect.isasyncgenfunction(function):
        raise TypeError(f"{name} has a yield: a test cannot be a generator; put what is set up into its body")
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"{name} is not a coroutine function: write `async def {function.__name__}(pg, …)`")
    if "<locals>" in name:
        raise TypeError(
            f"{name} is defined inside a function, where the processes of the ranks cannot find it: "
            f"move it to the top of its module, or into a class there"
        )
    with contextlib.suppress(TypeError, OSError):
        file = inspect.getsourcefile(function)
        if file is None or file.startswith("<"):
            raise TypeError(f"{name} comes from no file, and the processes of the ranks import one")
    parameters = list(inspect.signature(function).parameters.values())
    method = bool(parameters) and parameters[0].name == "self"
    rest = parameters[method:]
    if "." in name and not method and rest and rest[0].name == "pg":
        raise TypeError(
            f"{name} is a method without `self`: write `async def {function.__name__}(self, pg, …)`"
        )
    if not rest or rest[0].name != "pg":
        place = "after `self`" if method else "as its first argument"
        has = f"; it has ({', '.join(one.name for one in parameters)})" if parameters else ""
        raise TypeError(f"{name} must take the process group {place}, `pg`{has}")
    for one in rest:
        if one.kind in _MANY:
            raise TypeError(f"{name}: ranks are given arguments by name, and {one} has none: name each")
    return method, [*parameters[:method], *rest[1:]]
