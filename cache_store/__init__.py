"""What is cached where and for whom: the pure core and its adapters. Knows no torch, grpc, ray or protobuf."""
