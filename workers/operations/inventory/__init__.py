"""The inventory of the broker's messages and the policies' deadlines, for the books; the life of one task."""
