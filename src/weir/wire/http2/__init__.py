"""HTTP/2 (RFC 9113) and gRPC on top of it, from the server's side, without any input or output of its own."""
