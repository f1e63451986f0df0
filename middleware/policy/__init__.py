"""The policies of an app, and what they decide. Nothing here talks to a broker."""
