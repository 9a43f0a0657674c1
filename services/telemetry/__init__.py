"""What a router shows of itself: metrics, and spans of requests."""
