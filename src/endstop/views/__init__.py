"""What people and programs see of a run: a live view for terminals, plain lines for pipes, and JSON lines."""
