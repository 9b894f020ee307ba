"""The tokens of a sequence as a chain of blocks, which can be cut and begun again."""

from __future__ import annotations

from collections.abc import Sequence

from tenuto.errors import StateError
from tenuto.tokens import BlockHash, ExtraKeys, HashChain


class TokenSequence:
    """A growing chain, with what else its keys and values depend on."""

    def __init__(self, root: bytes, block_tokens: int, extra: ExtraKeys) -> None:
        self.extra = extra
        self.chain = HashChain(root, block_tokens, extra)

    @property
    def hashes(self) -> list[BlockHash]:
        """Of its full blocks, in order."""
        return self.chain.hashes

    def append(self, token_ids: Sequence[int]) -> None:
        """Append token ids. Raises `StateError`, with none appended, for what is none (0 to 2³² - 1)."""
        try:
            if isinstance(token_ids, bytes | bytearray):  # an array takes them as memory
                token_ids = list(token_ids)
            self.chain.append(token_ids)
        except (OverflowError, TypeError) as error:
            raise StateError(f"tokens are whole numbers from 0 to {2**32 - 1} ({error})") from None

    def head(self, n_blocks: int) -> TokenSequence:
        """A sequence of its first `n_blocks` blocks, to be continued otherwise."""
        found = TokenSequence(self.chain.root, self.chain.block_tokens, self.extra)
        found.chain.append_bytes(b"".join(self.chain.block(index).token_bytes for index in range(n_blocks)))
        return found


def extra_of(salt: str | ExtraKeys) -> ExtraKeys:
    """The extra keys that a salt stands for. Raises `StateError` for what is no text."""
    if isinstance(salt, ExtraKeys):
        return salt
    if not isinstance(salt, str) or not _is_text(salt):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise StateError(f"{salt!r} is no salt; give text, or ExtraKeys")
    return ExtraKeys(salt=salt)


def _is_text(text: str) -> bool:
    """Whether it has UTF-8: half of a surrogate pair has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
