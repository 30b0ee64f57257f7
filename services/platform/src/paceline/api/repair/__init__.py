"""Repair: proposals and decisions, recoveries, supervisors, policies, the stop switch."""
