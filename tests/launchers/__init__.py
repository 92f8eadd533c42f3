"""Every launcher for real, with what it needs installed: `python -m tests.launchers`.

The quick tests set each launcher's variables (`tests/integration/test_hello.py`). Here the launchers
themselves run examples/hello.py and the digits training, unchanged, on one host and on two (network
namespaces with names of their own), and a rank is killed. What comes of it is in docs/launchers-table.md.
"""
