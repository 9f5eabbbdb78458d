"""Auxiliary numbers: what a model learns to predict beside its targets, worked out from the molecules of a store.

They are kept beside the store with a checksum, because RDKit takes some milliseconds for each molecule.
"""

import json

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from tokengt.data.manifest import CACHE, GRAPHS
from tokengt.data.progress import progress_bar
from tokengt.data.store import Store
from tokengt.files import checksum, write_whole
from tokengt.interop.descriptors import feature_names, features_of
from tokengt.interop.molecules import MoleculePolicy
from tokengt.interop.reading import molecules

_CHUNK = 256
_VERSION = 1


def auxiliary_numbers(store: Store, kinds: tuple[str, ...], shown: bool) -> Float[Tensor, "graphs auxiliary"]:
    """The numbers of these kinds for every molecule of a store.

    Raises:
        ValueError: the store holds no molecules, or not their SMILES.
    """
    texts = store.each_text
    if texts is None or store.manifest.level != "graph":
        raise ValueError("auxiliary numbers are worked out from SMILES; this data has none")
    file = None
    if store.folder is not None:
        key = json.dumps([_VERSION, kinds, feature_names(kinds), store.manifest.files.get(GRAPHS)])
        file = store.folder / CACHE / f"auxiliary-{checksum(key.encode())[:16]}.safetensors"
        if file.is_file():
            try:
                kept = load(file.read_bytes())["numbers"]
            except (SafetensorError, KeyError):
                kept = torch.empty(0, 0)
            if kept.shape == (len(store), len(feature_names(kinds))):
                return kept
    numbers = np.zeros((len(texts), len(feature_names(kinds))), dtype=np.float32)
    with progress_bar(len(texts), "molecules", "auxiliary numbers", shown=shown) as advance:
        for start in range(0, len(texts), _CHUNK):
            some = [texts[place] for place in range(start, min(start + _CHUNK, len(texts)))]
            policy = MoleculePolicy(max_atoms=max(map(len, some), default=0) + 1)
            for place, molecule in enumerate(molecules(some, policy, "smiles"), start):
                # What was read when the store was made can be read now.
                if not isinstance(molecule, str):
                    numbers[place] = features_of(molecule, kinds)
            advance(len(some))
    found = torch.from_numpy(numbers)
    if file is not None:
        file.parent.mkdir(exist_ok=True)
        write_whole(file, save({"numbers": found}))
    return found
