"""`python -m torso`."""

from __future__ import annotations

import sys

from torso.cli.main import main

sys.exit(main())
