"""Hooks and backends with other releases of torch: python -m tools.torch_versions."""
