"""Dead letters on the command line: `redelivery dlq`, its filter options, and dead letters as text."""
