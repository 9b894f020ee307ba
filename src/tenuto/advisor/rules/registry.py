"""Rules by name."""

from __future__ import annotations

from collections.abc import Callable

from tenuto.advisor.rules.cleaning import CompactFiles, Prune
from tenuto.advisor.rules.placing import Demote, Promote
from tenuto.advisor.rules.protocol import Rule
from tenuto.advisor.settings import AdvisorSettings
from tenuto.plugins import make_named


def make_rules(settings: AdvisorSettings) -> dict[str, Rule]:
    """New rules, in the order of the settings. Raises `ConfigError`; see `plugins.make_named`."""
    prune, compact = settings.prune, settings.compact
    known: dict[str, Callable[[], Rule]] = {
        "demote": Demote,
        "promote": Promote,
        "prune": lambda: Prune(prune.most_age_s, prune.most_share),
        "compact": lambda: CompactFiles(compact.least_free_share, compact.every_s),
    }
    return {name: make_named("rule", name, "rules", known, Rule) for name in settings.rules}
