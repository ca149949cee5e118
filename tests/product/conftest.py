"""What these tests share."""

from taught import taught

__all__ = ["taught"]
