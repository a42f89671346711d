"""A way to an sshd that breaks after so many bytes, once."""

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Iterator

from demo.sshd import LoopbackSSHD


@contextlib.contextmanager
def cut_after(
    server: LoopbackSSHD, *, up: float = float("inf"), down: float = float("inf")
) -> Iterator[LoopbackSSHD]:
    """Yield the server behind a relay that resets the connection that first passes so many bytes.

    Args:
        server: the server.
        up: bytes from the client.
        down: bytes to the client.
    """
    left = {"up": up, "down": down}
    sockets: list[socket.socket] = []

    def carry(source: socket.socket, target: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                left[way] -= len(data)
                if left[way] <= 0:
                    left[way] = float("inf")
                    break
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                there = socket.create_connection(("127.0.0.1", server.port))
                sockets.extend((client, there))
                for way in ((client, there, "up"), (there, client, "down")):
                    threading.Thread(target=carry, args=way, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        try:
            yield dataclasses.replace(server, port=listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for one in sockets:
                one.close()
