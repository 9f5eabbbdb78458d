"""The public data sets that are known by name: what they hold, where they lie and who reads them.

A new one is an entry of :data:`DATASETS`. Its reader stands in ``_official.py``, or in ``_node_graphs.py`` where all
labels are those of the nodes of one graph.
"""

from dataclasses import dataclass

from tokengt.data._node_graphs import TARGET, GraphsReader, benchmark, compact, heterophilous, reader, wikipedia
from tokengt.data._official import (
    Reader,
    by_scaffold,
    molpcba,
    molpcba_archive,
    pcqm4mv2,
    peptides,
    plain,
    qm9,
    table_reader,
    zinc_archive,
    zinc_arrays,
)
from tokengt.data.downloads import Remote

_MOLNET = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets"
_LRGB = "https://www.dropbox.com/s"
_ZINC = "https://raw.githubusercontent.com/graphdeeplearning/benchmarking-gnns/master/data/molecules"
_SHCHUR = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
_SNAP = "https://snap.stanford.edu/data/wikipedia.zip"
_YANDEX = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data"
_OGB = "https://snap.stanford.edu/ogb/data/graphproppred/csv_mol_download"


@dataclass(frozen=True)
class Layout:
    """Files that hold a data set, and who reads them: as rows of a table, or as graphs."""

    files: tuple[str, ...]
    rows: Reader | None = None
    graphs: GraphsReader | None = None


@dataclass(frozen=True)
class Dataset:
    """A public data set.

    Args:
        name: what people call it.
        rows: how many molecules it has after those that everybody leaves out, or how many nodes its graph has.
        task: what is learned.
        targets: the columns to learn.
        split: how it is split, in words.
        has_split: whether its rows come with their parts; otherwise training splits it.
        licence: that of the data.
        local: its files under ``TOKENGT_DATA``.
        public: its files as they are downloaded, by the names of ``remotes``.
        remotes: where those are.
    """

    name: str
    rows: int
    task: str
    targets: tuple[str, ...]
    split: str
    has_split: bool
    licence: str
    local: Layout
    public: Layout
    remotes: tuple[Remote, ...]

    @property
    def size(self) -> int:
        """About how many bytes are downloaded; 0 where nobody says so beforehand."""
        sizes = [remote.size for remote in self.remotes]
        return sum(sizes) if all(sizes) else 0

    @property
    def is_graphs(self) -> bool:
        """Whether it has graphs of its own in place of molecules to read."""
        return self.local.graphs is not None


def _moleculenet(
    name: str,
    rows: int,
    task: str,
    targets: tuple[str, ...],
    remote: Remote,
    *,
    smiles: str = "smiles",
    published: tuple[str, ...] = (),
    scaffold: bool = False,
) -> Dataset:
    """One table of SMILES and labels; ``published`` are the targets' names in the public file, where they differ."""
    read = by_scaffold if scaffold else plain
    return Dataset(
        name,
        rows,
        task,
        targets,
        "scaffold, 80/10/10" if scaffold else "none official: random by the seed",
        scaffold,
        "MIT",
        Layout((f"molecules/{name}.csv.xz",), table_reader(read, columns=[smiles, *targets])),
        Layout((remote.file,), table_reader(read, columns=[smiles, *(published or targets)])),
        (remote,),
    )


_TOX21 = (
    *(f"NR-{name}" for name in ("AR", "AR-LBD", "AhR", "Aromatase", "ER", "ER-LBD", "PPAR-gamma")),
    *(f"SR-{name}" for name in ("ARE", "ATAD5", "HSE", "MMP", "p53")),
)
_QM9 = ("mu", "alpha", "homo", "lumo", "gap", "r2", "zpve", "u0", "u298", "h298", "g298", "cv")
_PEPTIDES = (
    *("antifungal", "cell_cell_communication", "anticancer", "drug_delivery_vehicle", "antimicrobial"),
    *("antiviral", "antihypertensive", "antibacterial", "antiparasitic", "toxic"),
)
# The numbers of the assays in PubChem, in the order of OGB's columns.
_ASSAYS = """
1030 1379 1452 1454 1457 1458 1460 1461 1468 1469 1471 1479 1631 1634 1688 1721 2100 2101 2147 2242 2326 2451 2517 2528
2546 2549 2551 2662 2675 2676 411 463254 485281 485290 485294 485297 485313 485314 485341 485349 485353 485360 485364
485367 492947 493208 504327 504332 504333 504339 504444 504466 504467 504706 504842 504845 504847 504891 540276 540317
588342 588453 588456 588579 588590 588591 588795 588855 602179 602233 602310 602313 602332 624170 624171 624173 624202
624246 624287 624288 624291 624296 624297 624417 651635 651644 651768 651965 652025 652104 652105 652106 686970 686978
686979 720504 720532 720542 720551 720553 720579 720580 720707 720708 720709 720711 743255 743266 875 881 883 884 885
887 891 899 902 903 904 912 914 915 924 925 926 927 938 995
"""
_PCBA = tuple(f"PCBA-{number}" for number in _ASSAYS.split())

_ALL = (
    Dataset(
        "pcqm4mv2",
        3_746_620,
        "regression (eV)",
        ("homolumogap",),
        "official, test hidden",
        True,
        "CC BY 4.0",
        Layout(("pcqm4m-v2/raw/data.csv.gz", "pcqm4m-v2/split_dict.pt"), pcqm4mv2),
        Layout(("pcqm4m-v2.zip",), pcqm4mv2),
        (
            Remote(
                "https://dgl-data.s3-accelerate.amazonaws.com/dataset/OGB-LSC/pcqm4m-v2.zip",
                "pcqm4m-v2.zip",
                59_000_000,
            ),
        ),
    ),
    Dataset(
        "qm9",
        130_831,
        "regression (12 targets)",
        _QM9,
        "110,000/10,000/rest, permutation by seed 0",
        True,
        "CC0",
        Layout(
            ("molecules/qm9.csv.xz", "molecules/qm9_uncharacterized.txt"),
            table_reader(qm9, columns=["smiles", *_QM9]),
        ),
        Layout(("qm9.csv", "uncharacterized.txt"), table_reader(qm9, columns=["smiles", *_QM9])),
        (
            Remote(f"{_MOLNET}/qm9.csv", "qm9.csv", 29_900_000),
            Remote("https://ndownloader.figshare.com/files/3195404", "uncharacterized.txt", 220_000),
        ),
    ),
    Dataset(
        "zinc12k",
        12_000,
        "regression",
        ("y",),
        "official, 10,000/1,000/1,000",
        True,
        "as ZINC gives it, for research",
        Layout(("molecules/zinc12k_graphs.npz",), graphs=zinc_arrays),
        Layout(("molecules.zip", "train.index", "val.index", "test.index"), graphs=zinc_archive),
        (
            Remote(f"{_LRGB}/feo9qle74kg48gy/molecules.zip?dl=1", "molecules.zip", 0),
            *(Remote(f"{_ZINC}/{part}.index", f"{part}.index", 0) for part in ("train", "val", "test")),
        ),
    ),
    Dataset(
        "molpcba",
        437_929,
        "binary (128 targets)",
        _PCBA,
        "official, scaffold",
        True,
        "MIT",
        Layout(("molecules/pcba_smiles.csv.xz", "molecules/pcba_labels.npy.xz", "molecules/pcba_split.npz"), molpcba),
        Layout(("pcba.zip",), table_reader(molpcba_archive, targets=_PCBA)),
        (Remote(f"{_OGB}/pcba.zip", "pcba.zip", 0),),
    ),
    Dataset(
        "peptides-func",
        15_535,
        "binary (10 targets)",
        _PEPTIDES,
        "official, stratified",
        True,
        "CC BY-NC 4.0",
        Layout(
            ("molecules/peptides_func.csv.gz", "molecules/peptides_func_split.npz"),
            table_reader(peptides, targets=_PEPTIDES),
        ),
        Layout(
            ("peptide_multi_class_dataset.csv.gz", "splits_random_stratified_peptide.pickle"),
            table_reader(peptides, targets=_PEPTIDES),
        ),
        (
            Remote(
                f"{_LRGB}/ol2v01usvaxbsr8/peptide_multi_class_dataset.csv.gz?dl=1",
                "peptide_multi_class_dataset.csv.gz",
                0,
            ),
            Remote(
                f"{_LRGB}/j4zcnx2eipuo0xz/splits_random_stratified_peptide.pickle?dl=1",
                "splits_random_stratified_peptide.pickle",
                0,
            ),
        ),
    ),
    _moleculenet(
        "esol",
        1_128,
        "regression (log mol/l)",
        ("logSolubility",),
        Remote(f"{_MOLNET}/delaney-processed.csv", "delaney-processed.csv", 97_000),
        published=("measured log solubility in mols per litre",),
    ),
    _moleculenet(
        "freesolv",
        642,
        "regression (kcal/mol)",
        ("freesolv",),
        Remote(f"{_MOLNET}/SAMPL.csv", "SAMPL.csv", 0),
        published=("expt",),
    ),
    _moleculenet(
        "bace",
        1_513,
        "binary",
        ("Class",),
        Remote(f"{_MOLNET}/bace.csv", "bace.csv", 0),
        smiles="mol",
        scaffold=True,
    ),
    _moleculenet(
        "tox21",
        7_831,
        "binary (12 targets)",
        _TOX21,
        Remote(f"{_MOLNET}/tox21.csv.gz", "tox21.csv.gz", 125_000),
    ),
    _moleculenet(
        "hiv",
        41_127,
        "binary",
        ("HIV_active",),
        Remote(f"{_MOLNET}/HIV.csv", "HIV.csv", 0),
        scaffold=True,
    ),
)


def _nodes(name: str, rows: int, classes: int, local: Layout, public: Layout, url: str, licence: str) -> Dataset:
    """One graph whose nodes have a class each, without an official split."""
    task = f"nodes of one graph, {classes} classes"
    split = "none official: random by the seed, or per-class as in the paper"
    return Dataset(
        name, rows, task, (TARGET,), split, False, licence, local, public, (Remote(url, public.files[0], 0),)
    )


def _benchmark(name: str, file: str, rows: int, classes: int) -> Dataset:
    local = Layout((f"nodes/{name.replace('-', '_')}.npz",), graphs=compact)
    return _nodes(name, rows, classes, local, Layout((file,), graphs=benchmark), f"{_SHCHUR}/{file}", "MIT")


def _wikipedia(name: str, rows: int) -> Dataset:
    local = Layout((f"nodes/{name}.npz",), graphs=compact)
    public = Layout(("wikipedia.zip",), graphs=reader(wikipedia, name=name))
    return _nodes(name, rows, 6, local, public, _SNAP, "as SNAP gives it, for research")


def _heterophilous(name: str, rows: int, classes: int) -> Dataset:
    file = f"{name.replace('-', '_')}.npz"
    return Dataset(
        name,
        rows,
        "nodes of one graph, " + ("binary" if classes == 2 else f"{classes} classes"),
        (TARGET,),
        "ten official ones: given:0 to given:9",
        True,
        "MIT",
        Layout((f"nodes/heterophilous/{file}",), graphs=heterophilous),
        Layout((file,), graphs=heterophilous),
        (Remote(f"{_YANDEX}/{file}", file, 0),),
    )


_OF_NODES = (
    _benchmark("coauthor-cs", "ms_academic_cs.npz", 18_333, 15),
    _benchmark("coauthor-physics", "ms_academic_phy.npz", 34_493, 5),
    _benchmark("amazon-photo", "amazon_electronics_photo.npz", 7_650, 8),
    _benchmark("amazon-computers", "amazon_electronics_computers.npz", 13_752, 10),
    _wikipedia("chameleon", 2_277),
    _wikipedia("crocodile", 11_631),
    _heterophilous("minesweeper", 10_000, 2),
    _heterophilous("tolokers", 11_758, 2),
    _heterophilous("chameleon-filtered", 890, 5),
    _heterophilous("squirrel-filtered", 2_223, 5),
    _heterophilous("actor", 7_600, 5),
)
DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in (*_ALL, *_OF_NODES)}
