"""Load on a system, timed from when it was meant to be sent, and what came of it."""
