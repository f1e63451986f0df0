"""The tests, in whatever process one of their modules is loaded: the RabbitMQ node that they start is the demo's."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "examples" / "webhooks"))
