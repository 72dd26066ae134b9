"""One attempt inside a job."""
