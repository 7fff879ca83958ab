"""What each strategy would need: memory, time, and which one to take."""
