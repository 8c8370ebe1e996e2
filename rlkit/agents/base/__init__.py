"""The base of every agent's Config and Hyper: facts about keys, and errors in one line."""
