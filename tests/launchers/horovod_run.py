"""horovodrun without Horovod's native part: its launcher, which is Python, and says that gloo is there."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.insert(0, sys.argv.pop(1))
    from horovod.runner import launch

    launch.gloo_built = lambda *_, **__: True
    launch.mpi_built = lambda *_, **__: False
    launch.run_commandline()
