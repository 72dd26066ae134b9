"""What is asked for, and what runs on the nodes."""
