"""A report on what this machine has for aiodist, what each missing piece costs, and how to mend it.

system, packages, room, network, settings, driver, cupy, torch, mpi, host, backends
            a file for each topic: an examination of the machine, and pure functions from facts to findings
examine     the table of topics, and all of them together
topic       what topics are made of: questions, answers, findings
asking      processes that are asked, as they may hang or crash; `apart`: what each of them runs
report      findings as text and as JSON

No module here needs NumPy, or any other package, to be imported: that one is missing is a finding. Nor does
this one import anything: every process that is asked begins with it.
"""
