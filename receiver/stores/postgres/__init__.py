"""The PostgreSQL inbox."""
