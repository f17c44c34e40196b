"""Write the golden files again: `python -m tests.kubernetes.write_golden`. Their changes are to be read."""

from __future__ import annotations

from tests.kubernetes.rendered import GOLDEN, LINES, text_of

if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name in LINES:
        (GOLDEN / f"{name}.yaml").write_text(text_of(name), encoding="utf-8")
