"""The operator's page, asked over HTTP and in a browser."""
