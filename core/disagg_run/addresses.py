"""Addresses of nodes, read, and each in one spelling: ``[FD00:0::1]`` is ``fd00::1``."""

from __future__ import annotations

import ipaddress


def numeric_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a text is, in brackets or not; None = it is none, but perhaps a host name."""
    try:
        return ipaddress.ip_address(_bare(text))
    except ValueError:
        return None


def is_loopback(text: str) -> bool:
    """Whether an address, as a number, is of this machine's loopback: nodes with such ones are all on one machine."""
    parsed = numeric_address(text)
    return parsed is not None and parsed.is_loopback


def normal_address(text: str) -> str:
    """An address in its shortest spelling, an IPv4 one within IPv6 as what it is; a host name in lower case.

    Raises ValueError with the reason for an address by which no other node can reach one.
    """
    parsed = numeric_address(text)
    if parsed is None:
        return _bare(text).lower()
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        elif parsed.is_link_local:
            raise ValueError(
                f"{text!r} is link-local: it means nothing without a network device, which each node names"
            )
        elif parsed.scope_id is not None:
            raise ValueError(f"{text!r} names a zone, which is one machine's own: write the address without it")
    if parsed.is_unspecified or parsed.is_multicast or str(parsed) == "255.255.255.255":
        raise ValueError(f"{text!r} is the address of no node: others must reach the node at it")
    return str(parsed)


def _bare(text: str) -> str:
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text
