"""Every public coroutine is cancelled at its every await, once and twice."""
