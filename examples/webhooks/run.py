#!/usr/bin/env python3
"""Start the demo: see `README.md`, or `--help`."""

from __future__ import annotations

import sys

from webhooks.demo import main

if __name__ == "__main__":
    sys.exit(main())
