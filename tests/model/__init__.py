"""The protocol as an explicit-state model, explored to its end."""
