"""docs/store.md: its examples run, and its figures are those of the code."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from aiodist.net.wire.messages import MAX_FRAME
from aiodist.rendezvous import HashStore, client, connection, job_store, watch
from aiodist.rendezvous.durable import committer
from aiodist.rendezvous.machine import DEFAULT_LIMIT, RETURN_GRACE, budget, sessions, watches

PAGE = (Path(__file__).parents[2] / "docs" / "store.md").read_text()
BLOCKS = re.findall(r"^```python elsewhere\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS)
async def test_the_examples_run(code: str) -> None:
    async with HashStore() as store:
        made = eval(compile(code, "store.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {"store": store})
        if inspect.iscoroutine(made):
            await made


@pytest.mark.parametrize(
    "said",
    [
        f"log is larger than {committer.LOG_BYTES >> 20} MiB",
        f"`--limit` ({DEFAULT_LIMIT >> 30} GiB)",
        f"answer | {MAX_FRAME >> 20} MiB",
        f"begins | {watches.MAX_WATCHED >> 20} MiB",
        f"read | {connection.MAX_UNREAD >> 20} MiB; for all of them {job_store.MAX_SLOW >> 20} MiB",
        f"client | {watch.MANY}, then",
        f"disk | {job_store.MAX_HELD >> 20} MiB, then",
        f"wait | {budget.MAX_WAITING:,} in a store",
        {2.0: "two seconds after"}[RETURN_GRACE],
    ],
)
def test_the_figures_are_the_codes(said: str) -> None:
    assert said in PAGE.replace("\n", " ")


def test_clients_try_for_longer_than_the_store_takes_to_miss_them() -> None:
    assert client.RECONNECT_SECONDS < sessions.SESSION_GRACE
