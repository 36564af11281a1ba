"""Reading of request bodies, limited in size and time."""

import asyncio

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect

BODY_S = 120.0


"""For the largest body: 8 MiB at half a megabit a second."""


async def body_of(request: Request, most_b: int) -> bytes:
    """Read the body; 413 above the size, 408 when the rest does not arrive."""
    parts, size_b = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                size_b += len(part)
                if size_b > most_b:
                    raise HTTPException(413, f"at most {most_b} bytes at a time")
                parts.append(part)
    except ClientDisconnect:  # killed while it sent: it will send it again
        raise HTTPException(400, "the rest of it did not come") from None
    except TimeoutError:
        raise HTTPException(
            408, f"the rest of it did not come within {BODY_S:g} s", {"Connection": "close"}
        ) from None
    return b"".join(parts)
