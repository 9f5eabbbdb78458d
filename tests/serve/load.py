"""Clients that keep a server busy, in a process of their own: ``python -m tests.serve.load PORT CLIENTS SECONDS``.

Each asks for one molecule after another over one connection, and checks every answer. Written on bare sockets, because
a library would take more of the machine than the server does.
"""

import asyncio
import json
import sys
import time
from typing import NamedTuple

# Drugs and solvents of 3 to 27 heavy atoms.
SMILES = [
    "CC(=O)Oc1ccccc1C(=O)O",
    "CN1C=NC2=C1C(=O)N(C(=O)N2C)C",
    "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
    "CCO",
    "c1ccccc1O",
    "CC(=O)Nc1ccc(O)cc1",
    "CCN(CC)CCNC(=O)c1ccc(N)cc1",
    "OC(=O)c1ccccc1O",
    "CCCCCC",
    "ClC(Cl)Cl",
    "CN(C)CCC=C1c2ccccc2CCc2ccccc12",
    "C1CCNCC1",
    "O=C1CCCCC1",
    "CC1(C)SC2C(NC(=O)Cc3ccccc3)C(=O)N2C1C(=O)O",
    "Nc1ccc(cc1)S(=O)(=O)N",
    "CC12CCC3C(CCC4=CC(=O)CCC34C)C1CCC2O",
]


class Load(NamedTuple):
    """How many requests were answered with a prediction, how many not, and the longest wait in seconds."""

    answered: int
    failed: int
    seconds: float
    longest: float

    @property
    def rate(self) -> float:
        return self.answered / self.seconds


async def _client(number: int, port: int, until: float) -> tuple[int, int, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answered, failed, longest, place = 0, 0, 0.0, number * 7
    while time.monotonic() < until:
        text = SMILES[place % len(SMILES)]
        place += 1
        body = json.dumps({"smiles": [text]}).encode()
        head = f"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        started = time.monotonic()
        writer.write(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        header = await reader.readuntil(b"\r\n\r\n")
        length = int(header.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        content = await reader.readexactly(length)
        longest = max(longest, time.monotonic() - started)
        right = header.startswith(b"HTTP/1.1 200") and json.loads(content)["rows"][0]["smiles"] == text
        answered, failed = answered + right, failed + (not right)
    writer.close()
    return answered, failed, longest


async def _load(port: int, clients: int, seconds: float) -> Load:
    started = time.monotonic()
    async with asyncio.timeout(seconds + 60):
        done = await asyncio.gather(*(_client(n, port, started + seconds) for n in range(clients)))
    took = time.monotonic() - started
    return Load(sum(a for a, _, _ in done), sum(f for _, f, _ in done), took, max(w for _, _, w in done))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_load(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))))
