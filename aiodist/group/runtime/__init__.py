"""From a process to a member of a job, and a coroutine to its loop.

`init` meets a job's other processes, `joining` a job that runs already, `member` is what both make of a
meeting; `running` is `run`.
"""
