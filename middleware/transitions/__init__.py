"""How a decision is carried out, by what a broker offers (`ports`)."""
