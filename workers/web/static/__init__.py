"""What the page loads besides itself: one style sheet, one script, one picture."""
