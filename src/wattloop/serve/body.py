"""The body of a request, up to a size."""

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect

__all__ = ["body_of"]


async def body_of(request: Request, most_b: int) -> bytes:
    """All of it; 413 before more than that is in memory."""
    parts, size_b = [], 0
    try:
        async for part in request.stream():
            size_b += len(part)
            if size_b > most_b:
                raise HTTPException(413, f"at most {most_b} bytes at a time")
            parts.append(part)
    except ClientDisconnect:  # killed while it sent: it will send it again
        raise HTTPException(400, "the rest of it did not come") from None
    return b"".join(parts)
