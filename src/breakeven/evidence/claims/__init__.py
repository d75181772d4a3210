"""The published claims and the rules that decide them."""

from breakeven.evidence.claims.facts import Claim, Facts, Finding
from breakeven.evidence.claims.ledger import decide, ledger, load_claims, markdown

__all__ = ["Claim", "Facts", "Finding", "decide", "ledger", "load_claims", "markdown"]
