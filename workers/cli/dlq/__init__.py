"""Dead letters on the command line: `redelivery dlq`, the options that choose among them, and how one is shown."""
