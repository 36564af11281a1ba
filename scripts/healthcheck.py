"""Health of the container: a server answers, a measurement is alive.

Usage: python healthcheck.py [PID]

The container's first process decides. `wattloop serve` is healthy when it answers on its port; a
refusal for lack of a token is an answer. Any other verb is healthy while it runs.
"""

import sys
import urllib.error
import urllib.request
from pathlib import Path

PORT = "8765"
LONGEST_S = 5.0


def fault_of(words: list[str]) -> str | None:
    """Return the fault of the program of this command line, or None."""
    if _verb(words) != "serve":
        return None
    address = f"http://127.0.0.1:{_port(words)}/metrics"
    try:
        urllib.request.urlopen(address, timeout=LONGEST_S).close()
    except urllib.error.HTTPError as error:
        return f"{address}: {error}" if error.code >= 500 else None
    except OSError as error:
        return f"{address}: {error}"
    return None


def _verb(words: list[str]) -> str:
    """Return the argument behind the program: `python /usr/local/bin/wattloop serve --port 80`."""
    programs = [i for i, word in enumerate(words) if Path(word).name == "wattloop"]
    return words[programs[0] + 1] if programs and programs[0] + 1 < len(words) else ""


def _port(words: list[str]) -> str:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--port":
            return following
        if word.startswith("--port="):
            return word.partition("=")[2]
    return PORT


def main(pid: str = "1") -> int:
    """Print the fault, if any; return the exit code."""
    line = Path("/proc", pid, "cmdline").read_bytes()
    fault = fault_of([word.decode(errors="replace") for word in line.split(b"\0")])
    print(fault or "healthy")
    return int(fault is not None)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
