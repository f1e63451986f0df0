"""Tests of the package as users install, type and import it."""
