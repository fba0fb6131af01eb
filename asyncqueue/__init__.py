"""A durable job queue and HTTP dispatcher for asyncio services."""
