"""One model on one device: scheduling, engine and runners, and the gRPC edge that routers call."""
