"""Side by side with peers, in one run: interleaved rounds, medians, the machine and the versions printed."""
