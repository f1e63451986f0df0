"""What should follow: the policies of an app, and what they decide. Pure."""
