"""Commands that run until they are stopped: the dispatcher, the metrics and the page."""
