"""tenuto: keys and values of prompts already computed, kept in tiers and given back.

Importing this package loads nothing else and changes nothing. See ``tenuto.manager`` for the core
and ``tenuto.connectors`` for the engines it serves.
"""

__version__ = "0.1.0"
