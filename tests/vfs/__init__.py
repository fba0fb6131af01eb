"""SQLite over files that tell what is done to them, and that may fail: for power cuts and I/O errors."""
