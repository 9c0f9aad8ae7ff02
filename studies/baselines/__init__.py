"""What published work does where Dovetail searches: the baselines that studies and benchmarks compare with."""
