"""Ray Train with AiodistConfig runs a script: `ray_job.py [--fail-once|--elastic] SCRIPT …`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from aiodist.integrations.ray import AiodistConfig
from tests.launchers.scripts import run_script


def train(config: dict[str, Any]) -> None:
    """What each worker runs. In the first run rank 1 may fail once all have met."""
    failed = Path(config["failed"])
    if config["fail_once"] and not failed.exists():
        import aiodist as dist

        async def main() -> None:
            async with await dist.init_process_group() as pg:
                await pg.barrier()
                if get_context().get_world_rank() == 1:
                    failed.touch()
                    raise RuntimeError("rank 1 fails once")
                await pg.barrier()

        dist.run(main())
    run_script(config["words"])


if __name__ == "__main__":
    words = sys.argv[1:]
    fail_once = words[0] in ("--fail-once", "--elastic")
    workers = (1, 2) if words[0] == "--elastic" else 2
    with tempfile.TemporaryDirectory() as folder:
        trainer = DataParallelTrainer(
            train,
            train_loop_config={
                "words": words[fail_once:],
                "fail_once": fail_once,
                "failed": f"{folder}/failed",
            },
            backend_config=AiodistConfig(),
            scaling_config=ScalingConfig(num_workers=workers),
            run_config=RunConfig(
                storage_path=folder, failure_config=FailureConfig(max_failures=int(fail_once))
            ),
        )
        trainer.fit()
