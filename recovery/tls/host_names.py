"""What can be the name of a host: in a certificate that is made here, and in `expected_hostname`, which a certificate is checked for."""

from __future__ import annotations

import ipaddress
import re

_NAME = re.compile(r"(?!-)([A-Za-z0-9_-]{1,63}\.)*(?![0-9]+\Z)[A-Za-z0-9_-]{1,63}", re.ASCII)
"""Of DNS. What ends in a number is an address, or a slip in one."""
_CHARACTERS_MAX = 253


def is_host(text: str) -> bool:
    """Is it an IP address, or a name of DNS? A name in another script counts in its encoded form only."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return len(text) <= _CHARACTERS_MAX and _NAME.fullmatch(text) is not None
    # The part of an IPv6 address that is for this host alone stands in no certificate.
    return "%" not in text
