"""vLLM: `kv_connector="TenutoConnector"`, `kv_connector_module_path="tenuto.connectors.vllm"`.

Translates vLLM's objects to session calls and back, and nothing else.
"""

from contextlib import suppress

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from tenuto.connectors.vllm.connector import TenutoConnector

# vLLM's MultiConnector looks up its children's stats by name alone, without the module path they were loaded by.
with suppress(ValueError):  # somebody has registered the name: theirs stays
    KVConnectorFactory.register_connector("TenutoConnector", "tenuto.connectors.vllm", "TenutoConnector")

__all__ = ["TenutoConnector"]
