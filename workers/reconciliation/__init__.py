"""The reconciliation: a Spark job that folds outcome events and an inventory into a verdict for every life."""
