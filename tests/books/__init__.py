"""Tests of the books: the export, the reconciliation, the report."""
