"""The report for people: the page, its pictures, the summary, and how words and numbers are written."""
