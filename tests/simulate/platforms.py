#!/usr/bin/env python3
"""Writes SimGrid platforms: hosts joined by a fat tree, a dragonfly or a torus.

usage: platforms.py KIND HOSTS RANKS_PER_HOST FOLDER
KIND is fat_tree, full_tree, dragonfly or torus. HOSTS is a power of two, at least 16. Writes FOLDER/platform.xml and
FOLDER/hostfile, for smpirun -platform and -hostfile.
"""
import sys
from pathlib import Path

# A link of 100 Gbit/s, and memory between the ranks of a host. One flop a nanosecond: with
# --cfg=smpi/host-speed:1Gf a second of computing takes a simulated second.
LINKS = 'speed="1Gf" bw="12.5GBps" lat="1us" loopback_bw="50GBps" loopback_lat="200ns"'
HOSTS_LEAST = 16
HEAD = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
"""


def factors(n, parts):
    """n, a power of two, as a product of `parts` powers of two that differ by at most a factor of
    two, in ascending order.
    """
    bits = n.bit_length() - 1
    if n != 1 << bits:
        raise ValueError(f"{n} hosts: expected a power of two")
    return [1 << ((bits + i) // parts) for i in range(parts)]


def fat_tree(n_hosts):
    """Two levels; a switch has half as many links up as down."""
    switches, hosts = factors(n_hosts, 2)
    return f"2;{hosts},{switches};1,{hosts // 2};1,1"


def full_tree(n_hosts):
    """The same with as many links up as down."""
    switches, hosts = factors(n_hosts, 2)
    return f"2;{hosts},{switches};1,{hosts};1,1"


def dragonfly(n_hosts):
    """Groups of chassis of routers; SimGrid's parameters also say the links of each pair."""
    groups, chassis, routers, hosts = factors(n_hosts, 4)
    return f"{groups},2;{chassis},1;{routers},1;{hosts}"


def torus(n_hosts):
    """Three dimensions."""
    return ",".join(str(n) for n in factors(n_hosts, 3))


KINDS = {"fat_tree": fat_tree, "full_tree": full_tree, "dragonfly": dragonfly, "torus": torus}


def platform(kind, n_hosts):
    """The text of a platform file."""
    topology = f'topology="{kind.upper().replace("FULL", "FAT")}" topo_parameters="{KINDS[kind](n_hosts)}"'
    names = f'id="cluster" prefix="node-" suffix="" radical="0-{n_hosts - 1}"'
    return f"{HEAD}  <cluster {names}\n           {LINKS}\n           {topology}/>\n</platform>\n"


def hostfile(n_hosts, ranks_per_host):
    """A line for each rank: the ranks of a host follow each other."""
    return "".join(f"node-{i}\n" * ranks_per_host for i in range(n_hosts))


def write(kind, n_hosts, ranks_per_host, folder):
    """Writes both files; returns their paths. A network has at least HOSTS_LEAST hosts; without ranks
    the last ones only pass messages on.
    """
    paths = Path(folder) / "platform.xml", Path(folder) / "hostfile"
    paths[0].write_text(platform(kind, max(n_hosts, HOSTS_LEAST)))
    paths[1].write_text(hostfile(n_hosts, ranks_per_host))
    return paths


if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[1] not in KINDS:
        sys.exit(__doc__)
    write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
