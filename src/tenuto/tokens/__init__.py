"""Token ids → blocks → chained hashes.

Takes token ids and what else the keys and values depend on (model, adapters, salt, images).
Gives a `Namespace` per model and a `HashChain` per request, which grows with the request.
Never: touches torch, files, clocks or threads; trusts an engine's own hashes.
"""

from tenuto.tokens.chain import BlockHash, BlockKey, HashChain, TokenBlock
from tenuto.tokens.extra import ExtraKeys, MediaSpan
from tenuto.tokens.namespace import FORMAT_VERSION, Namespace

__all__ = [
    "FORMAT_VERSION",
    "BlockHash",
    "BlockKey",
    "ExtraKeys",
    "HashChain",
    "MediaSpan",
    "Namespace",
    "TokenBlock",
]
