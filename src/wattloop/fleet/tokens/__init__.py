"""Who may do what: secrets by role and node, of which only hashes are kept."""

from wattloop.fleet.tokens.caller import ADMIN, ANYBODY, Caller, Role
from wattloop.fleet.tokens.file import Token, TokenFile, add_token, list_tokens, revoke_token

__all__ = [
    "ADMIN",
    "ANYBODY",
    "Caller",
    "Role",
    "Token",
    "TokenFile",
    "add_token",
    "list_tokens",
    "revoke_token",
]
