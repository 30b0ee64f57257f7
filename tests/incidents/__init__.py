"""Reconstructions of public incidents, and the score of `paceline diagnose` on them."""
