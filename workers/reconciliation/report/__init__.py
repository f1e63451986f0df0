"""What people read: the page, its pictures, the summary, and the words and numbers of all of them."""
