"""The n-th call of SQLite to its files fails, for every n."""
