"""How a decision is carried out, with the operations that a broker offers (`ports`)."""
