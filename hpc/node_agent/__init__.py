"""What runs beside the ranks on a node: telemetry, and copies of the journals."""
