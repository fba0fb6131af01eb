"""The store for more than one machine: PostgreSQL 15 or newer, by asyncpg (`pip install asyncqueue[postgres]`)."""
