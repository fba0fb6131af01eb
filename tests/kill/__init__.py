"""A process is killed between any two statements, and at any other time."""
