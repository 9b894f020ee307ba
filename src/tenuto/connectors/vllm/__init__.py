"""vLLM: `kv_connector="TenutoConnector"`, `kv_connector_module_path="tenuto.connectors.vllm"`.

Translates vLLM's objects to session calls and back, and nothing else.
"""

from tenuto.connectors.vllm.connector import TenutoConnector

__all__ = ["TenutoConnector"]
