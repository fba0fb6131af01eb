"""An idempotent HTTP inbox: a message sent twice has its effect once.

`create_app` makes the aiohttp application, to be mounted in a larger one or run by `python -m receiver`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from receiver.app import create_app

__all__ = ["create_app"]


def __getattr__(name: str) -> Any:
    if name == "create_app":
        from receiver.app import create_app  # noqa: PLC0415 - `import receiver` stays cheap

        return create_app
    raise AttributeError(f"module 'receiver' has no attribute {name!r}")
