"""The one thing of asyncssh that is changed from within: decoy packets where they protect nothing.

asyncssh puts an empty packet before each one, against an attack on ciphers in CBC mode. With any
other cipher that costs a tenth of the speed of a transfer, and asyncssh has no option for it.
"""

from typing import Any

import asyncssh

# RFC 4253, section 12.
_MSG_IGNORE = 2


def spare_decoys(connection: asyncssh.SSHClientConnection) -> None:
    """Send no decoy packets on a connection whose cipher does not need them."""
    if "-cbc" in str(connection.get_extra_info("send_cipher")):
        return
    send_packet = connection.send_packet

    def send(pkttype: int, *args: bytes, handler: Any = None) -> None:
        if pkttype != _MSG_IGNORE:
            send_packet(pkttype, *args, handler=handler)

    connection.send_packet = send  # type: ignore[method-assign]
