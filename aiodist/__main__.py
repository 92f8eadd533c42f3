"""`python -m aiodist` is the `aiodist` command."""

from __future__ import annotations

import sys

from aiodist.cli.main import main

sys.exit(main())
