"""`python -m redelivery`: the same as the command `redelivery`."""

from __future__ import annotations

from redelivery.workers.cli.main import main

if __name__ == "__main__":
    main()
