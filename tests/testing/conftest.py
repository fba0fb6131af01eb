"""The plugin's own fixtures, whether or not the project is installed with its entry point."""

from asyncqueue.testing import asyncqueue_clock, asyncqueue_queue, asyncqueue_receiver  # noqa: F401 - fixtures
