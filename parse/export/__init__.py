"""What was measured, put where people keep their numbers: files of tables, MLflow, Weights & Biases, TensorBoard."""
