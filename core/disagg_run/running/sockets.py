"""Who listens on a port of this node, from /proc/net/tcp and the descriptors of processes."""

from __future__ import annotations

import functools
import ipaddress
import os
import pwd
import socket
import struct
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import attrs

from disagg_run import addresses

_LISTEN = "0A"


@attrs.frozen(kw_only=True)
class ListeningSocket:
    """A TCP socket in LISTEN state."""

    #: Address it is bound to, IPv4-mapped ones as IPv4.
    address: str
    port: int
    #: User id of its creator.
    uid: int
    #: Inode, by which a process's descriptor is recognised.
    inode: int

    def takes(self, address: str) -> bool:
        """Whether a connection to ``address`` reaches it."""
        bound = ipaddress.ip_address(self.address)
        return bound.is_unspecified or self.address == address


def listening(ports: Collection[int] | None = None) -> list[ListeningSocket]:
    """The sockets that listen on ``ports``, or on any."""
    found = []
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        try:
            with open(f"/proc/net/{name}", encoding="ascii") as file:
                next(file)
                for line in file:
                    fields = line.split()
                    if fields[3] != _LISTEN:
                        continue
                    address, _, port = fields[1].partition(":")
                    if ports is not None and int(port, 16) not in ports:
                        continue
                    found.append(
                        ListeningSocket(
                            address=_address(address, family),
                            port=int(port, 16),
                            uid=int(fields[7]),
                            inode=int(fields[9]),
                        )
                    )
        except (FileNotFoundError, StopIteration):  # no IPv6 in this kernel
            continue
    return found


def _address(text: str, family: socket.AddressFamily) -> str:
    # The kernel prints 32-bit words in the machine's byte order.
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    address = ipaddress.ip_address(socket.inet_ntop(family, packed))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


@functools.lru_cache(maxsize=4096)
def numeric(address: str) -> str:
    """The address of a host name as /proc would show it; the text itself where it cannot be resolved."""
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0]
    except OSError:
        return address
    return str(found)


def is_loopback(address: str) -> bool:
    """Whether a node address or name is this machine's own loopback: then several ranks share the machine."""
    return addresses.is_loopback(numeric(address))


def is_local(address: str) -> bool:
    """Whether a process of this machine can bind ``address``."""
    try:
        family, kind, proto, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.bind(place)
    except OSError:
        return False
    return True


def inodes_of(pid: int) -> set[int] | None:
    """Inodes of the sockets that a process has open; None where that cannot be read, empty where it is gone."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError:
        return set()
    except PermissionError:
        return None
    found = set()
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def foreign(sockets: Iterable[ListeningSocket], family: Iterable[int]) -> list[ListeningSocket]:
    """Those sockets that no process of ``family`` (pids) holds.

    A process of the family whose descriptors cannot be read (it made itself undumpable) may hold those of its user.
    """
    ours: set[int] = set()
    hidden: set[int] = set()
    for pid in family:
        inodes = inodes_of(pid)
        if inodes is None:
            hidden.add(_uid(pid))
        else:
            ours |= inodes
    return [each for each in sockets if each.inode not in ours and each.uid not in hidden]


def _uid(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def holders(found: ListeningSocket) -> Iterator[int]:
    """The pids of the processes that hold a socket, as far as they can be seen."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and found.inode in (inodes_of(int(entry)) or ()):
            yield int(entry)


def holder(found: ListeningSocket) -> str:
    """Who holds a socket, as far as it can be seen: pid, user and command line."""
    user = _user(found.uid)
    for pid in holders(found):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            command = ""
        return f"pid {pid} of user {user} ({command.strip()[:200] or 'no command line'})"
    return f"a process of user {user} that cannot be seen from here"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
