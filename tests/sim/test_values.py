"""Small tensors, objects and messages carry the values that they would have."""

from __future__ import annotations

import pytest

from tests.sim.scripts import Simulate

COLLECTIVES = """
n, me = pg.size, pg.rank
every = [np.arange(2 * n, dtype=np.float64) + 100 * rank for rank in range(n)]
mine = every[me].copy()
await pg.all_reduce(mine)
np.testing.assert_array_equal(mine, sum(every))
mine = every[me].copy()
await pg.all_reduce(mine, dist.ReduceOp.AVG)
np.testing.assert_allclose(mine, sum(every) / n)
mine = every[me].copy()
await pg.reduce(mine, 1, dist.ReduceOp.MAX)
if me == 1:
    np.testing.assert_array_equal(mine, np.max(every, axis=0))
mine = every[me].copy()
await pg.broadcast(mine, 2)
np.testing.assert_array_equal(mine, every[2])
out = await pg.all_gather(every[me])
np.testing.assert_array_equal(out.reshape(n, -1), every)
part = await pg.reduce_scatter(every[me])
np.testing.assert_array_equal(part, sum(every)[2 * me : 2 * me + 2])
part = np.empty(2)
await pg.scatter(part, np.concatenate(every)[: 2 * n] if me == 1 else None, src=1)
np.testing.assert_array_equal(part, np.concatenate(every)[2 * me : 2 * me + 2])
out = await pg.gather(every[me], 0)
if me == 0:
    np.testing.assert_array_equal(out.reshape(n, -1), every)
got = await pg.all_to_all(every[me])
np.testing.assert_array_equal(got, np.concatenate([row[2 * me : 2 * me + 2] for row in every]))
out = await pg.all_gather(np.full(me + 1, me), sizes=[rank + 1 for rank in range(n)])
np.testing.assert_array_equal(out, np.repeat(np.arange(n), np.arange(n) + 1))
objects = await pg.all_gather_object({"rank": me})
assert objects == [{"rank": rank} for rank in range(n)]
"""


def test_all_collectives(simulate: Simulate) -> None:
    for network in ("hosts=5", "hosts=2x2"):
        found = simulate.facts(COLLECTIVES, "--network", network)
        kinds = {row["operation"] for row in found["rows"]}
        assert {"all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "scatter"} <= kinds


def test_each_collective_of_the_table_gives_what_it_gives_on_real_ranks(simulate: Simulate) -> None:
    """By the programs that every backend has to carry out; a kind that is added is among them."""
    body = """
    from aiodist.testing.conformance_backend import check_program
    await check_program(pg, seed=3, length=60, big=200)
    """
    for network in ("hosts=5", "hosts=2x2", "hosts=1x3"):
        simulate.facts(body, "--network", network)


def test_messages_subgroups_and_batches(simulate: Simulate) -> None:
    lines = simulate.printed(
        """
        me, n = pg.rank, pg.size
        x = np.full(3, me, np.float32)
        y = np.empty(3, np.float32)
        work = pg.send(x, (me + 1) % n, async_op=True)
        await pg.recv(y, (me - 1) % n)
        await work
        assert (y == (me - 1) % n).all()
        for count in (3, 2000):
            mine, own = np.full(count, me + 1.0), np.zeros(count)
            work = pg.send(mine, me, async_op=True)
            assert await pg.recv(own, None) == me
            await work
            assert (own == mine).all()
        half = await pg.split(me % 2, me)
        total = np.array([me])
        await half.all_reduce(total)
        async with pg.coalesce():
            pg.all_reduce(x)
            pg.all_reduce(y)
        print(me, total[0], x[0], y[0])
        """,
        *("--ranks", "4"),
    )
    assert sorted(lines) == ["0 2 6.0 6.0", "1 4 6.0 6.0", "2 2 6.0 6.0", "3 4 6.0 6.0"]


def test_gradients(simulate: Simulate) -> None:
    lines = simulate.printed(
        """
        weights = [np.full(10, pg.rank + 5, np.float32), np.full((3, 4), pg.rank + 7, np.float32)]
        sync = await dist.GradientSync(pg, weights)
        assert (weights[0] == 5).all() and (weights[1] == 7).all()
        for index, weight in enumerate(weights):
            sync.ready(index, np.full_like(weight, pg.rank * (index + 1)))
        averages = await sync.finish()
        print(averages[0][9], averages[1][2, 3])
        """,
        *("--ranks", "3"),
    )
    assert lines == ["1.0 2.0"] * 3


QUANTISED = """
mine = np.full(300, pg.rank + 1.0, np.float32)
await pg.all_reduce_quantized(mine)
np.testing.assert_allclose(mine, pg.size * (pg.size + 1) / 2, rtol=0.02)
mine[7] = np.inf if pg.rank == 1 else 0
try:
    await pg.all_reduce_quantized(mine)
except dist.NonFiniteValues as error:
    assert error.rank == 1
else:
    raise AssertionError
mine = np.full(sum(range(pg.size)), pg.rank)  # as many to a rank as its number
out = await pg.all_to_all(mine, in_splits=range(pg.size), out_splits=[pg.rank] * pg.size)
print(out.tolist())
"""


def test_small_quantised_tensors_carry_values(simulate: Simulate) -> None:
    lines = sorted(simulate.printed(QUANTISED, "--ranks", "3"))
    assert lines == sorted(str([giver for giver in range(3) for _ in range(rank)]) for rank in range(3))


RARE = """
weights = [np.full(8, pg.rank + index, np.float32) for index in range(4)]
diloco = await dist.LocalSGD(pg, weights, sync_every=2, codec=CODEC)
for _ in range(4):
    for weight in weights:
        weight += pg.rank
    await diloco.step()
for index, weight in enumerate(weights):
    np.testing.assert_allclose(weight, index + 4 * (pg.size - 1) / 2, rtol=0.02)
"""


@pytest.mark.parametrize("codec", [None, "int8"])
def test_a_small_model_is_averaged(simulate: Simulate, codec: str | None) -> None:
    simulate.facts(RARE.replace("CODEC", repr(codec)), "--ranks", "3")


LARGE = """
large = np.empty(1 << 20, np.float32)
large[...] = np.nan
await pg.all_reduce_quantized(np.empty(1 << 21, np.float32), codec="int8", feedback=dist.ErrorFeedback())
weights = [np.empty(1 << 20, np.float32) for _ in range(2)]
diloco = await dist.DiLoCo(pg, weights, sync_every=4, fragments=2, delay=1, mix=0.5, codec="int4")
for _ in range(4):
    await diloco.step()
"""


def test_large_tensors_are_sizes_whatever_their_memory_holds(simulate: Simulate) -> None:
    found = simulate.facts(LARGE, "--ranks", "3")
    assert {row["operation"] for row in found["rows"]} >= {"all_to_all", "all_gather"}
