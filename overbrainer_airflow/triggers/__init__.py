"""Triggers: what goes on while a task holds no worker."""
