"""The operator's page: the functions of the command line in a browser."""
