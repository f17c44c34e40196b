"""Settings from the environment. The only reader of os.environ."""

from __future__ import annotations
