"""How fast the training step and inference are here, beside the same weights over a padded batch."""

from tokengt.bench.config import BenchConfig
from tokengt.bench.padded import PaddedTokenGT
from tokengt.bench.real import RealConfig, bench_real
from tokengt.bench.real_report import RealRow
from tokengt.bench.report import BenchRow
from tokengt.bench.run import bench

__all__ = ["BenchConfig", "BenchRow", "PaddedTokenGT", "RealConfig", "RealRow", "bench", "bench_real"]
