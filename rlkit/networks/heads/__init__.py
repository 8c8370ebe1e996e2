"""Networks of agents: an encoder, and the outputs that an algorithm needs."""
