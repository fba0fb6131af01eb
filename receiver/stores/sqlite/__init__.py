"""The SQLite inbox."""
