"""The helper process beside the ranks on a node: telemetry, and copies of the journals."""
