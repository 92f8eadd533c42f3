"""What a simulated program sees: time, its rank, others; and how it ends where it does wrong."""

from __future__ import annotations

import pytest

from tests.sim.scripts import Simulate

STEP = """
x = np.empty(1 << 20, np.float32)
for _ in range(3):
    compute(0.5)
    await pg.all_reduce(x)
"""


def seconds(simulate: Simulate, body: str, *options: str) -> float:
    """The virtual time of a program."""
    found: float = simulate.facts(body, *options)["virtual_seconds"]
    return found


def test_the_same_run_twice(simulate: Simulate) -> None:
    one, other = (simulate.facts(STEP, "--network", "hosts=4x2") for _ in range(2))
    for found in (one, other):
        del found["took_seconds"], found["memory_bytes"]
    assert one == other


def test_a_straggler_delays_by_its_factor(simulate: Simulate) -> None:
    plain = seconds(simulate, STEP, "--ranks", "6")
    slow = seconds(simulate, STEP, "--ranks", "6", "--straggler", "3:1.2")
    assert slow - plain == pytest.approx(3 * 0.5 * 0.2, rel=0.01)
    faster = seconds(simulate, STEP, "--ranks", "6", "--straggler", "3:0.5")
    assert faster == pytest.approx(plain, rel=0.01)


def test_communication_overlaps_with_computing(simulate: Simulate) -> None:
    after = "await pg.all_reduce(x)\nawait asyncio.sleep(0.5)"
    beside = "work = pg.all_reduce(x, async_op=True)\nawait asyncio.sleep(0.5)\nawait work"
    head = "x = np.empty(1 << 22, np.float32)\n"
    options = ("--network", "hosts=4,link=1Gbit/s:20us")
    one, other = (seconds(simulate, head + body, *options) for body in (after, beside))
    assert 0.5 < other < one
    assert one - other == pytest.approx(one - 0.5, rel=0.05)


def test_clocks_and_names_are_each_ranks_own(simulate: Simulate) -> None:
    lines = simulate.printed(
        """
        import os
        began = time.monotonic()
        await asyncio.sleep(pg.rank * 1000.0)
        print(os.environ["RANK"], os.environ["LOCAL_RANK"], round(time.monotonic() - began))
        """,
        *("--network", "hosts=2x2"),
    )
    assert lines == ["0 0 0", "1 1 1000", "2 0 2000", "3 1 3000"]


def test_a_deadlock_says_who_waits_for_what(simulate: Simulate) -> None:
    said = simulate.error(
        """
        try:
            if pg.rank:
                await pg.all_reduce(np.ones(4, np.float32))
            else:
                await pg.recv(np.empty(4, np.float32), 1)
        finally:
            await asyncio.sleep(1)
        """,
        *("--ranks", "3"),
    )
    assert said.count("\n") == 1
    assert "ranks 1 and 2 wait in all_reduce(float32[4], SUM) #1 of world at script.py:11 for rank 0" in said
    assert "rank 0 waits in recv from rank 1 at script.py:13" in said


def test_two_groups_in_opposite_order(simulate: Simulate) -> None:
    said = simulate.error(
        """
        groups = [await pg.split(0, pg.rank, name=name) for name in ("left", "right")]
        for group in groups if pg.rank else reversed(groups):
            await group.all_reduce(np.ones(3))
        """,
        *("--ranks", "3"),
    )
    assert said.count("\n") == 1
    assert "ranks 1 and 2 wait in all_reduce(float64[3], SUM) #0 of left at script.py:11 for rank 0" in said
    assert "rank 0 waits in all_reduce(float64[3], SUM) #0 of right at script.py:11 for ranks 1 and 2" in said


def test_a_mismatch_says_what_each_did(simulate: Simulate) -> None:
    said = simulate.error("await pg.all_reduce(np.ones(4 + pg.rank // 2))", "--ranks", "3")
    assert said.count("\n") == 1
    assert "all_reduce(float64[4], SUM); rank 2: all_reduce(float64[5], SUM)" in said


def test_a_rank_that_fails_is_the_cause(simulate: Simulate) -> None:
    said = simulate.error(
        "await pg.barrier()\nif pg.rank == 2:\n    raise ValueError('no data')\nawait pg.barrier()",
        "--ranks",
        "4",
    )
    assert said.splitlines()[-1] == "aiodist sim: error: rank 2 failed: ValueError: no data"
    assert said.count("Traceback") == 1
    assert "script.py" in said


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("await dist.join()", "join() cannot be simulated. Simulated ranks are all there"),
        ("dist.portal.init_process_group()", "a portal cannot be simulated. Await the operations"),
        ("dist.GradientSync(pg, [np.ones(3)], elastic=True)", "the members of group 'world' never change"),
        (
            "await asyncio.open_connection('127.0.0.1', 9)",
            "asyncio's connections, servers and processes cannot",
        ),
        (
            "await asyncio.create_subprocess_exec('true')",
            "asyncio's connections, servers and processes cannot",
        ),
        ("await pg.rebuild()", "the members of group 'world' never change"),
    ],
)
def test_what_cannot_be_simulated_is_refused(body: str, says: str, simulate: Simulate) -> None:
    said = simulate.error(body, "--ranks", "2")
    assert "Traceback" not in said
    assert "UsageError" in said and says in said


BACK = """
    async def give_up(work, after):
        task = asyncio.ensure_future(work)
        await asyncio.sleep(after)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or not task.exception()
        return task.cancelled()
"""


def test_a_receive_that_is_taken_back_leaves_its_message_wherever_that_is(simulate: Simulate) -> None:
    """Not sent yet, on its way, just here: the next receive gets it, and later receives move up."""
    lines = simulate.printed(
        BACK
        + """
    if pg.rank:
        for number in range(8):
            await asyncio.sleep(0.01)
            await (pg.send_object(number, 0) if number % 2 else pg.send(np.full(4000, number), 0))
            await pg.send(np.full(3, number), 0, 7)
        await pg.barrier()
        return
    cancelled = set()
    for number in range(8):
        place = np.full(4000, -1)
        def receive():
            return pg.recv_object(1) if number % 2 else pg.recv(place, 1)
        for after in (0, 0.004, 0.0099, 0.01, 0.01002, 0.01005, 0.0101, 0.0102):
            result = await give_up(receive(), after)
            cancelled.add(result)
            if not result:
                break
        small = np.full(3, -1)
        assert await pg.recv(small, 1, 7) == 1
        assert list(small) == [number] * 3
        if result:
            got = await receive()
            assert (got if number % 2 else place[0]) == number, (number, got, place[0])
    await pg.barrier()
    print(sorted(cancelled))
        """,
        *("--network", "hosts=2,link=1Gbit/s:20us"),
    )
    assert lines == ["[False, True]"]


@pytest.mark.parametrize("anybody", [False, True])
def test_receives_behind_one_that_is_taken_back_move_up(simulate: Simulate, anybody: bool) -> None:
    lines = simulate.printed(
        f"""
    src = {None if anybody else 1}
    if pg.rank:
        await asyncio.sleep(1)
        works = [pg.send(np.full(2000, number), 0, async_op=True) for number in range(3)]
        await asyncio.sleep(5)
        for work in works:
            await work
    else:
        places = [np.full(2000, -1) for _ in range(4)]
        first = asyncio.ensure_future(pg.recv(places[0], src))
        await asyncio.sleep(0)
        later = [pg.recv(place, src, async_op=True) for place in places[1:3]]
        await asyncio.sleep(1.0001)
        assert not first.done()
        first.cancel()
        await asyncio.wait([first])
        last = pg.recv(places[3], src, async_op=True)
        for work in (*later, last):
            assert await work == 1
        print([int(place[0]) for place in places], len(set(places[1])))
        """,
        *("--network", "hosts=2,link=1Gbit/s:200us"),
    )
    assert lines == ["[-1, 0, 1, 2] 1"]


def test_closing_goes_on_after_a_receive_under_way_was_taken_back(simulate: Simulate) -> None:
    lines = simulate.printed(
        BACK
        + """
    if pg.rank:
        await asyncio.sleep(1)
        await pg.send(np.full(2000, 5), 0)
    else:
        assert await give_up(pg.recv(np.full(2000, -1), 1), 1.0001)
        await pg.drain()
        print("through")
        """,
        *("--network", "hosts=2,link=1Gbit/s:200us"),
    )
    assert lines == ["through"]
