"""Policies: functions without state, one question each. A policy is a table, and a test walks every combination of it."""
