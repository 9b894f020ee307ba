"""The disk tier: extents in pre-written pool files, named by a crash-safe manifest.

pool files (`files`) x storage `runtime` x storage engine (`store`), in a folder claimed by `instance` under the node's
`quota`. `peers` reads what other engines of the node wrote, `listing` looks from outside. The folder is drawn in
docs/format.md.
"""

from tenuto.tiers.disk.store import DiskSettings, DiskStore

__all__ = ["DiskSettings", "DiskStore"]
