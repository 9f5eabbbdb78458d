"""What one client may ask for, and how much work is taken on at a time."""

from dataclasses import dataclass, fields

from tokengt.workflow.rows import CHUNK_ROWS


@dataclass(frozen=True)
class Limits:
    """Every limit of a server; a request beyond one of them is answered with a sentence that names it.

    Args:
        body: bytes of a request's body.
        rows: molecules, rows or graphs of one request.
        atoms: atoms of one molecule.
        elements: nodes and edges, counted together, of one graph that is no molecule.
        seconds: from a whole request to its answer; what takes longer is given up.
        slow_seconds: how long the headers of a request, and then its body, may take to arrive.
        waiting: requests that are worked on or wait at the same time; one more is told to come again.
        connections: open connections.
        batch_rows: rows that the model is given at a time, from however many requests.
        batch_wait: seconds that a request waits at most for others that are just being read.
        explain_atoms: atoms, or nodes and edges of another graph, of what is explained.
        explain_seconds: from a whole request to its explanation.
        explanations: explanations that are worked on or wait at the same time.
    """

    body: int = 4 << 20
    rows: int = 2000
    atoms: int = 300
    elements: int = 5000
    seconds: float = 60.0
    slow_seconds: float = 10.0
    waiting: int = 128
    connections: int = 512
    batch_rows: int = 256
    batch_wait: float = 0.01
    explain_atoms: int = 100
    explain_seconds: float = 180.0
    explanations: int = 4

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            least = 0 if each.name == "batch_wait" else 1 if isinstance(each.default, int) else 0.1
            # Compared so that NaN is refused too.
            if not value >= least or value == float("inf"):
                raise ValueError(f"the limit {each.name} is {value}; expected a number of at least {least}")
        if self.rows > CHUNK_ROWS:
            most = f"at most {CHUNK_ROWS:,}; longer files are for tokengt predict"
            raise ValueError(f"the limit rows is {self.rows:,}; expected {most}")
