"""The reconciliation: a Spark job that compares outcome events with an inventory, and gives each life a verdict."""
