"""One archive with Rankwise and all wheels it needs, for machines without internet."""
