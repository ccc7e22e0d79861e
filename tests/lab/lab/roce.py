"""A RoCE v2 packet made by hand: what a port has to take, and, with a wrong ICRC, what it has to drop."""

import socket
import struct
import zlib

ETHERTYPE_IPV4 = 0x0800
UDP = 17
ROCE_PORT = 4791
# Opcode of a datagram in one packet (IBTA vol. 1, 9.2.1), and the queue pair and Q_Key of connection managers (9.6.1.5.2).
UD_SEND_ONLY = 0x64
GSI_QPN = 1
GSI_QKEY = 0x80010000
# A SEND to the connection manager with an attribute that there is not: nobody has to answer (IBTA vol. 1, 13.4.2 and 13.4.5).
MAD = bytes([1, 7, 2, 3]) + bytes(12) + b"\xff\xff" + bytes(238)


def checksum(header):
    """Of an IPv4 header whose own checksum is 0 (RFC 791)."""
    total = sum(struct.unpack(">%dH" % (len(header) // 2), header))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def icrc(ip, udp, transport):
    """Of a packet over IPv4 (IBTA vol. 1, 7.8.1, and annex A17.3.3): what routers may change counts as ones."""
    ip, udp, transport = bytearray(ip), bytearray(udp), bytearray(transport)
    ip[1] = ip[8] = 0xff
    ip[10:12] = udp[6:8] = b"\xff\xff"
    transport[4] = 0xff
    # The LRH that RoCE does not have is of 8 bytes.
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + bytes(ip + udp + transport)))


def datagram(source, destination):
    """A frame with a datagram to QP 1; both are (MAC address, IPv4 address)."""
    macs = b"".join(bytes.fromhex(mac.replace(":", "")) for mac, _ in (destination, source))
    ips = b"".join(socket.inet_aton(ip) for _, ip in (source, destination))
    bth = struct.pack(">BBHII", UD_SEND_ONLY, 0x40, 0xffff, GSI_QPN, 0)
    transport = bth + struct.pack(">II", GSI_QKEY, GSI_QPN) + MAD
    udp = struct.pack(">HHHH", 49152, ROCE_PORT, 8 + len(transport) + 4, 0)
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp) + len(transport) + 4, 0, 0x4000, 64, UDP, 0) + ips
    ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    return macs + struct.pack(">H", ETHERTYPE_IPV4) + ip + udp + transport + icrc(ip, udp, transport)


def with_flipped(frame, at):
    """A copy with one bit of a byte flipped; a negative `at` counts from the end."""
    wrong = bytearray(frame)
    wrong[at] ^= 1
    return bytes(wrong)
