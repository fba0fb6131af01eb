"""The idempotent inbox at the other end."""
