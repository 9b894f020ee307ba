"""What is done with blocks: each rule looks at one worker and gives orders."""

from tenuto.advisor.rules.cleaning import CompactFiles, Prune
from tenuto.advisor.rules.placing import Demote, Promote
from tenuto.advisor.rules.protocol import Rule
from tenuto.advisor.rules.registry import make_rules

__all__ = ["CompactFiles", "Demote", "Promote", "Prune", "Rule", "make_rules"]
