"""Does it pay, and in which shape: designs side by side, distributions, prices, the verdict."""
