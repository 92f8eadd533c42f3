"""A worker: one process of the user's script, until nothing of it is left. Other nodes are unknown here.

starting     its environment, its files, and where its output goes
worker       the process: start it, see it end
spawner      forks a guardian for each worker
guardian     starts the worker, and ends what it leaves behind, also when the agent is gone
descendants  who that is
output       what it writes, on its way to consoles and files: never blocking
lines        bytes to whole lines; which of the last ones the report repeats; pure
logs         the folders and files of --log-dir
states       whether it is stopped
"""
