"""A sweep: what is asked, prepared, submitted, followed, and how its runs stand."""
