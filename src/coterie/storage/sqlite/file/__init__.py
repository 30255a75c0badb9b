"""The file itself: where it is, who may write to it, who is alive beside it, and what must not happen to it."""
