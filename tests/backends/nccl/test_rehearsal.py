"""The tests of tests/gpu, on stand-ins: that they are right themselves. Nothing here is CUDA's or NCCL's.

All ranks are in one process, so those that end one, or need a process each, are left out.
"""

from __future__ import annotations

from typing import Any

import pytest

from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster
from tests.backends.nccl import arithmetic
from tests.backends.nccl.stand_in import World
from tests.gpu import test_ends, test_nccl, test_order, test_staged, test_streams
from tests.levels import COSTLY, MORE

NCCL = "cpu:host,cuda:nccl"
STAGED = "cpu:host,cuda:host"
CUPY = {"lib": "cupy"}


async def rehearse(world: World, test: Any, size: int, given: dict[str, Any], backend: str = NCCL) -> None:
    """Run a test on a cluster."""
    arithmetic.install(world)

    async def main(pg: ProcessGroup) -> None:
        await test.spmd_function(pg, **given)

    await run_cluster(size, main, backend=backend)


@pytest.mark.parametrize(
    ("test", "given"),
    [
        (test_streams.test_operation_begins_after_what_the_callers_stream_was_given, {}),
        (test_streams.test_operation_in_a_batch_begins_after_the_stream_of_its_call, {}),
        (test_streams.test_stream_that_is_told_to_waits_for_the_result, {"given": "stream"}),
        (test_streams.test_stream_that_is_told_to_waits_for_the_result, {"given": "pointer"}),
        (test_streams.test_stream_that_is_told_to_waits_for_the_result, {"given": "current"}),
        (test_streams.test_tensor_may_be_freed_after_synchronize, {}),
        (test_streams.test_memory_that_nobody_holds_is_kept_until_the_operation_is_over, {}),
        (test_nccl.test_programs_on_one_rank, CUPY),
    ],
)
async def test_on_one_rank(world: World, test: Any, given: dict[str, Any]) -> None:
    await rehearse(world, test, 1, given)


@pytest.mark.parametrize(
    ("test", "size", "given"),
    [
        (test_nccl.test_programs_on_several_ranks, 2, {**CUPY, "world_size": 2}),
        pytest.param(
            test_nccl.test_programs_on_several_ranks,
            3,
            {**CUPY, "world_size": 3},
            marks=pytest.mark.slow(MORE),
        ),
        (test_nccl.test_groups_of_groups_and_batches, 3, {}),
        (test_nccl.test_messages_both_ways_tagged_and_beside_collectives, 2, {}),
        (test_nccl.test_ranks_that_disagree_are_told, 2, {}),
        (test_nccl.test_abort_with_an_operation_under_way, 2, {}),
        (test_order.test_send_begins_after_what_the_callers_stream_was_given, 2, {}),
        (test_order.test_receive_writes_after_what_the_callers_stream_reads, 2, {}),
        (test_order.test_one_rank_is_late_and_the_others_loop_turns, 2, {}),
        (test_order.test_collectives_against_messages, 2, {}),
        (test_order.test_first_exchange_against_a_message, 2, {}),
        (test_order.test_first_exchange_beside_a_receive_that_waits, 2, {}),
        (test_order.test_halves_with_a_factor, 2, CUPY),
        (test_ends.test_abort_while_a_group_is_being_connected, 2, {}),
        (test_ends.test_abort_in_a_message, 2, {}),
        (test_ends.test_closing_a_group_beside_a_kernel_that_waits, 2, {}),
        pytest.param(test_ends.test_twenty_rebuilds_leave_nothing, 2, {}, marks=pytest.mark.slow(COSTLY)),
    ],
)
async def test_on_several_ranks(world: World, test: Any, size: int, given: dict[str, Any]) -> None:
    await rehearse(world, test, size, given)


@pytest.mark.parametrize(
    ("test", "given"),
    [
        (test_staged.test_programs, {**CUPY, "world_size": 2}),
        (test_staged.test_ranks_with_tensors_in_different_places, {}),
        (test_staged.test_copies_wait_for_the_callers_stream, {}),
        (test_staged.test_operation_in_a_batch_is_copied_after_the_stream_of_its_call, {}),
        (test_staged.test_messages_are_copied_after_what_their_streams_were_given, {}),
        (test_staged.test_abort_beside_a_caller_that_computes, {}),
    ],
)
async def test_through_the_host(world: World, test: Any, given: dict[str, Any]) -> None:
    await rehearse(world, test, 2, given, STAGED)
