"""The smallest job: one all_reduce."""

import numpy as np

import aiodist as dist


async def main() -> None:
    async with await dist.init_process_group() as pg:
        await pg.all_reduce(np.ones(1, np.float32))


dist.run(main())
