"""What crosses the wire: messages, and bytes to tensors and back; knows neither HTTP frameworks nor the model."""
