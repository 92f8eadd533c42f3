"""One rank of an `@spmd` test: imports the test's file, joins the group, runs the function."""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

FAILURES = "AIODIST_SPMD_FAILURES"  # names the descriptor on which ranks say when they fail


def load(path: str, qualname: str) -> Any:
    """The test function inside its decorator, from its file."""
    file = Path(path)
    name = f"spmd_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(file.parent))
    spec.loader.exec_module(module)
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part)
    return getattr(found, "spmd_function", found)


def note_failure() -> None:
    """Note, in a rank, that its function raises now."""
    if descriptor := os.environ.get(FAILURES):
        os.write(int(descriptor), f"{os.environ['RANK']} {time.monotonic_ns()}\n".encode())


async def _run(path: str, qualname: str, arguments: dict[str, Any], backend: str) -> None:
    import aiodist as dist

    function = load(path, qualname)
    try:
        async with await dist.init_process_group(backend or None, timeout=60) as group:
            try:
                await function(group, **arguments)
            except BaseException:
                note_failure()  # before the group is aborted, and the others fail, too
                raise
    except BaseException:
        note_failure()  # later than that, which counts, unless it was outside the function
        raise


def main() -> None:
    """`python -m aiodist.testing.worker FILE FUNCTION ARGUMENTS [BACKEND]`; the environment has the rank."""
    import aiodist as dist

    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    path, qualname, arguments, *backend = sys.argv[1:]
    dist.run(_run(path, qualname, json.loads(arguments), *backend or [""]))


def main_forked(failures: int) -> None:
    """`main`, in a process that was forked with the descriptor on which ranks say when they fail."""
    os.environ[FAILURES] = str(failures)
    main()


if __name__ == "__main__":
    main()
