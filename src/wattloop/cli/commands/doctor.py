"""`wattloop doctor`: check this set-up, and print what to fix."""

from wattloop.cli.app import Verb

app = Verb()


@app.command("doctor", example="wattloop doctor")
def doctor() -> None:
    """x"""
