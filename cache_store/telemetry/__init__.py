"""What all processes share to be seen: counting, Prometheus' text, and the port that it is read from."""
