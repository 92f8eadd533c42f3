"""A report on what this machine has for aiodist, what each missing piece costs, and how to mend it.

    variables   the AIODIST_* variables that exist
    finding     what a check says
    probes/     look at the machine, in this process: quick, and nothing that could crash
    apart/      look at drivers and libraries, each in a process of its own that may hang or crash
    checks/     pure: from what the probes saw to findings
    examine     all of it, in sections; report: sections as text and as JSON

No module here needs NumPy, or any other package, to be imported: that one is missing is a finding. Nor does
this one import anything: every process that is asked begins with it.
"""
