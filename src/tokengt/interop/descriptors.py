"""Numbers about a molecule as a whole that chemists have long computed: RDKit's 2D descriptors and Morgan fingerprints.

They are features that a model is given beside the graph, or has to predict beside its targets. Which there are, and in
which order, is fixed here: RDKit's own list grows from version to version. Left out are those that take longer than all
others together (qed, the BCUT2D family), that explode with size (Ipc), and that versions before 2024.09 do not have.
Descriptors are squeezed by arcsinh and counts by log(1 + n), so that no molecule is very far from all others; what
RDKit cannot compute is 0. Neither depends on how the molecule is spelled. This module does not import torch.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

FeatureKind = Literal["rdkit2d", "morgan"]
FEATURE_KINDS: tuple[FeatureKind, ...] = get_args(FeatureKind)
MORGAN_BITS, _MORGAN_RADIUS = 1024, 2

_FAMILIES = {"PEOE_VSA": 14, "SMR_VSA": 10, "SlogP_VSA": 12, "EState_VSA": 11, "VSA_EState": 9}
_SIMPLE = """
MaxAbsEStateIndex MaxEStateIndex MinAbsEStateIndex MinEStateIndex MolWt HeavyAtomMolWt ExactMolWt NumValenceElectrons
NumRadicalElectrons MaxPartialCharge MinPartialCharge MaxAbsPartialCharge MinAbsPartialCharge FpDensityMorgan1
FpDensityMorgan2 FpDensityMorgan3 BalabanJ BertzCT Chi0 Chi0n Chi0v Chi1 Chi1n Chi1v Chi2n Chi2v Chi3n Chi3v Chi4n Chi4v
HallKierAlpha Kappa1 Kappa2 Kappa3 LabuteASA TPSA FractionCSP3 HeavyAtomCount NHOHCount NOCount NumAliphaticCarbocycles
NumAliphaticHeterocycles NumAliphaticRings NumAromaticCarbocycles NumAromaticHeterocycles NumAromaticRings NumHAcceptors
NumHDonors NumHeteroatoms NumRotatableBonds NumSaturatedCarbocycles NumSaturatedHeterocycles NumSaturatedRings RingCount
MolLogP MolMR
"""
_GROUPS = """
Al_COO Al_OH Al_OH_noTert ArN Ar_COO Ar_N Ar_NH Ar_OH COO COO2 C_O C_O_noCOO C_S HOCCN Imine NH0 NH1 NH2 N_O
Ndealkylation1 Ndealkylation2 Nhpyrrole SH aldehyde alkyl_carbamate alkyl_halide allylic_oxid amide amidine aniline
aryl_methyl azide azo barbitur benzene benzodiazepine bicyclic diazo dihydropyridine epoxide ester ether furan guanido
halogen hdrzine hdrzone imidazole imide isocyan isothiocyan ketone ketone_Topliss lactam lactone methoxy morpholine
nitrile nitro nitro_arom nitro_arom_nonortho nitroso oxazole oxime para_hydroxylation phenol phenol_noOrthoHbond
phos_acid phos_ester piperdine piperzine priamide prisulfonamd pyridine quatN sulfide sulfonamd sulfone term_acetylene
tetrazole thiazole thiocyan thiophene unbrch_alkane urea
"""
DESCRIPTORS: tuple[str, ...] = (
    *_SIMPLE.split(),
    *(f"{family}{place}" for family, count in _FAMILIES.items() for place in range(1, count + 1)),
    *(f"fr_{group}" for group in _GROUPS.split()),
)


def check_features(kinds: Sequence[str], what: str = "features") -> None:
    """Refuse kinds that there are not, or one that is named twice, of what is called so."""
    for kind in kinds:
        if kind not in FEATURE_KINDS or list(kinds).count(kind) > 1:
            raise ValueError(f"{what} are {', '.join(kinds)}; expected some of {', '.join(FEATURE_KINDS)}, each once")


def feature_names(kinds: Sequence[str]) -> tuple[str, ...]:
    """The names of all numbers of these kinds, such as ``rdkit2d:MolWt`` and ``morgan:17``."""
    found: dict[str, Sequence[str]] = {"rdkit2d": DESCRIPTORS, "morgan": tuple(map(str, range(MORGAN_BITS)))}
    return tuple(f"{kind}:{name}" for kind in kinds for name in found[kind])


def are_slow(kinds: Sequence[str]) -> bool:
    """Whether numbers of these kinds take much longer than the molecule's graph: milliseconds instead of a fifth."""
    return "rdkit2d" in kinds


def is_feature(name: str) -> bool:
    """Whether a descriptor has a name that only we give."""
    return name.partition(":")[0] in FEATURE_KINDS and ":" in name


def is_count(name: str) -> bool:
    """Whether a descriptor is a count of a Morgan fingerprint."""
    return name.startswith("morgan:")


def features_of(molecule: Any, kinds: Sequence[str]) -> NDArray[np.float32]:
    """All numbers of these kinds for one RDKit molecule."""
    return np.concatenate([_readers()[kind](molecule) for kind in kinds]).astype(np.float32)


@cache
def _readers() -> dict[str, Callable[[Any], NDArray[np.float64]]]:
    from rdkit.Chem import Descriptors
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

    # Five of them begin with the same indices of all pairs of atoms, which RDKit keeps with the molecule if it may.
    functions = [
        partial(getattr(Descriptors, name), force=False) if name.endswith("EStateIndex") else getattr(Descriptors, name)
        for name in DESCRIPTORS
    ]
    generator = GetMorganGenerator(radius=_MORGAN_RADIUS, fpSize=MORGAN_BITS)

    def descriptors(molecule: Any) -> NDArray[np.float64]:
        values = np.array([_computed(function, molecule) for function in functions])
        return np.arcsinh(np.where(np.isfinite(values), values, 0.0))

    def counts(molecule: Any) -> NDArray[np.float64]:
        return np.asarray(np.log1p(generator.GetCountFingerprintAsNumPy(molecule).astype(np.float64)))

    return {"rdkit2d": descriptors, "morgan": counts}


def _computed(function: Callable[[Any], float], molecule: Any) -> float:
    try:
        return float(function(molecule))
    except (ValueError, RuntimeError, ZeroDivisionError, ArithmeticError):
        return float("nan")
