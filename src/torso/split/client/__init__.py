"""The client's side of the wire: transport, routing, and the body as if it were here."""
