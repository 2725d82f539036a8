"""vLLM 0.29 and later: one connector class over any kvconn backend.

::

    vllm serve MODEL --kv-transfer-config '{
      "kv_connector": "KVConnConnector",
      "kv_connector_module_path": "kvconn.integrations.vllm",
      "kv_role": "kv_both",
      "kv_load_failure_policy": "recompute",
      "kv_connector_extra_config": {"backend": "disk:///var/cache/kv?capacity=200GiB"}}'

``kv_connector_extra_config`` is kvconn's own configuration (``backend``, ``policies``,
``lease_seconds`` and so on) and the options of
:class:`~kvconn.integrations.vllm.config.VllmOptions`.
"""

from kvconn.integrations.vllm.version import require_vllm

require_vllm()

from kvconn.integrations.vllm.connector import KVConnConnector  # noqa: E402 - not in an older one

__all__ = ["KVConnConnector"]
