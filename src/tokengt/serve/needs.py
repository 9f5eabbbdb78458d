"""What a run has to be told of every input, and whether a web page can tell it. This module does not import torch."""

from dataclasses import dataclass

from tokengt.interop.molecules import MoleculePolicy


@dataclass(frozen=True)
class Needs:
    """What the inputs of a run are; plain values, so that it travels to the processes that read molecules.

    Args:
        policy: how molecules become graphs; None where the run was trained on other graphs.
        descriptors: the columns of numbers that it is given beside every molecule.
        text_column: the column of SMILES in its training file.
        unnamed: how many numbers per graph it was trained with that have no names, as PyG data can have.
        tables: whether it was trained on a table of nodes and one of edges.
    """

    policy: MoleculePolicy | None
    descriptors: tuple[str, ...] = ()
    text_column: str | None = None
    unnamed: int = 0
    tables: bool = False

    @property
    def nothing_fits(self) -> str | None:
        """Why no request can be answered; None where there are some that can."""
        if self.tables:
            return (
                "this run was trained on a table of nodes and one of edges, which a web page cannot give it; use "
                "tokengt predict (--nodes and --edges, in Python NodeFiles)"
            )
        if not self.unnamed:
            return None
        return (
            f"this run was trained with {self.unnamed} numbers per graph that have no names, which a web page cannot "
            "give it; use tokengt predict"
        )

    @property
    def file_only(self) -> str | None:
        """Why a molecule alone, typed or drawn, is not enough; None where it is."""
        if not self.descriptors:
            return None
        return (
            f"this run was trained with descriptors, which a SMILES does not have; drop a CSV with the columns "
            f"{', '.join(self.descriptors)} beside the SMILES"
        )
