"""The report for people: the page, its pictures, the summary, and the words and numbers of all of them."""
