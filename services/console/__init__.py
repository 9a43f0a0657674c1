"""What an operator sees of a system, and the web console. Knows the operator's API and nothing of how it is served."""
