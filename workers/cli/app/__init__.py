"""Commands about an app as a whole: its policies, what adoption changes, what will hurt, and how it leaves."""
