"""The operator's page under test: its process, its visitors, and a real browser."""
