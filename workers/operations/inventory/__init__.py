"""The inventory of the broker's messages, with the policies' deadlines, for the books; and the life of one task."""
