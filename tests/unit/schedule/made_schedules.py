"""Made-up schedule problems: any small graphs, and layers of transformers forward and backward."""

from __future__ import annotations

from random import Random

from dovetail.schedule.problem import Mode, ModePhase, Problem, ScheduleTask

#: Parts into which a chip's bandwidth is divided, and what a core does.
PARTS = 100
EDGE, LANES = 128, 128


class Chip:
    """Cores of both kinds, and bytes per cycle."""

    def __init__(self, tensor: int, vector: int, rate: float, fill: int = 300):
        self.tensor, self.vector, self.rate, self.fill = tensor, vector, rate, fill

    def phase(self, cycles: int, tensor: int, vector: int, moved: float) -> ModePhase:
        """A phase that lasts as long as its cores or its bytes need."""
        cycles = max(cycles, -int(-moved // self.rate), 1)
        part = min(PARTS, -int(-moved * PARTS // (self.rate * cycles)))
        return ModePhase(cycles, tensor, vector, part)

    def product(self, m: int, k: int, n: int) -> tuple[Mode, ...]:
        """Modes of a matrix product on 1, 2, 4, ... tensor cores."""
        tiles, moved = -(-m // EDGE) * -(-n // EDGE), 2.0 * (m * k + k * n + m * n)
        return tuple(
            Mode((self.phase(-(-tiles // q) * k + self.fill, q, 0, moved),)) for q in powers(self.tensor, tiles)
        )

    def elementwise(self, elements: int, streams: int) -> tuple[Mode, ...]:
        """Modes of an elementwise operator on 1, 2, 4, ... vector cores."""
        rows = -(-elements // LANES)
        moved = 2.0 * elements * streams
        return tuple(Mode((self.phase(-(-rows // q) + self.fill, 0, q, moved),)) for q in powers(self.vector, rows))

    def attention(self, tokens: int, heads: int, size: int) -> tuple[Mode, ...]:
        """Modes of attention on both kinds of cores: fused, and the products before the softmax."""
        found: list[Mode] = []
        moved = 8.0 * tokens * heads * size
        for q in powers(self.tensor, heads * -(-tokens // EDGE)):
            v = min(q, self.vector)
            work = -(-heads * -(-tokens // EDGE) // q) * (2 * size + tokens) + self.fill
            soft = -(-heads * tokens * tokens // (LANES * v))
            found.append(Mode((self.phase(max(work, soft), q, v, moved),)))
            found.append(Mode((self.phase(work, q, 0, moved), self.phase(soft, 0, v, moved / 2))))
        return tuple(found)


def powers(most: int, useful: int) -> list[int]:
    """1, 2, 4, ... up to all cores, or to the first number that leaves some idle."""
    found, q = [1], 2
    while q <= most and q < 2 * useful:
        found.append(q)
        q *= 2
    return found


class Layer:
    """Tasks by name, and the names each needs."""

    def __init__(self) -> None:
        self.tasks: list[ScheduleTask] = []

    def add(self, modes: tuple[Mode, ...], *after: int) -> int:
        self.tasks.append(ScheduleTask(f"t{len(self.tasks)}", modes, tuple(sorted(set(after)))))
        return len(self.tasks) - 1

    def problem(self, chip: Chip) -> Problem:
        return Problem(tuple(self.tasks), chip.tensor, chip.vector, PARTS)


def random_chip(random: Random) -> Chip:
    tensor, vector = 2 ** random.randint(0, 12), 2 ** random.randint(0, 12)
    return Chip(tensor, vector, max(tensor, vector) * 2.0 ** random.uniform(-1, 6), random.choice([0, 128, 300]))


def shapes(random: Random) -> tuple[int, int, int, int]:
    """Tokens, width, width of keys, and inner width."""
    width = random.choice([768, 1024, 2048, 4096, 5120, 8192])
    tokens = random.choice([512, 1024, 2048, 4096])
    return (
        tokens,
        width,
        max(128, width // random.choice([1, 2, 8])),
        128 * round(width * random.choice([2.7, 4]) / 128),
    )


def forward_layer(random: Random, chip: Chip) -> Problem:
    """A transformer's layer: norm, three products, rotation, attention, product, add, norm, gated products, add."""
    tokens, width, keys, inner = shapes(random)
    layer, many = Layer(), tokens * width
    norm = layer.add(chip.elementwise(many, 2))
    q = layer.add(chip.product(tokens, width, width), norm)
    k = layer.add(chip.product(tokens, width, keys), norm)
    v = layer.add(chip.product(tokens, width, keys), norm)
    turned = [layer.add(chip.elementwise(many, 2), q), layer.add(chip.elementwise(tokens * keys, 2), k)]
    attended = layer.add(chip.attention(tokens, width // 128, 128), *turned, v)
    out = layer.add(chip.product(tokens, width, width), attended)
    added = layer.add(chip.elementwise(many, 3), out)
    norm = layer.add(chip.elementwise(many, 2), added)
    gate = layer.add(chip.product(tokens, width, inner), norm)
    up = layer.add(chip.product(tokens, width, inner), norm)
    acted = layer.add(chip.elementwise(tokens * inner, 3), gate, up)
    down = layer.add(chip.product(tokens, inner, width), acted)
    layer.add(chip.elementwise(many, 3), down, added)
    return layer.problem(chip)


def backward_layer(random: Random, chip: Chip) -> Problem:
    """The same layer's backward: every product's input gradient on the chain, its weight gradient beside it."""
    tokens, width, keys, inner = shapes(random)
    layer, many = Layer(), tokens * width

    def product(k: int, n: int, *after: int) -> int:
        layer.add(chip.product(k, tokens, n), *after)
        return layer.add(chip.product(tokens, n, k), *after)

    down = product(inner, width)
    acted = layer.add(chip.elementwise(tokens * inner, 5), down)
    gate, up = product(width, inner, acted), product(width, inner, acted)
    joined = layer.add(chip.elementwise(many, 3), gate, up)
    norm = layer.add(chip.elementwise(many, 4), joined)
    added = layer.add(chip.elementwise(many, 3), norm)
    out = product(width, width, added)
    attended = layer.add(chip.attention(2 * tokens, width // 128, 128), out)
    turned = [layer.add(chip.elementwise(many, 2), attended), layer.add(chip.elementwise(tokens * keys, 2), attended)]
    q, k = product(width, width, turned[0]), product(width, keys, turned[1])
    v = product(width, keys, attended)
    summed = layer.add(chip.elementwise(many, 4), q, k, v)
    norm = layer.add(chip.elementwise(many, 4), summed)
    layer.add(chip.elementwise(many, 3), norm, added)
    return layer.problem(chip)


def random_problem(random: Random, most_tasks: int = 12, most_modes: int = 4) -> Problem:
    """Any graph and any modes, one or two phases; some problems without bandwidth."""
    tensor, vector = random.randint(1, 8), random.randint(1, 8)
    bandwidth = random.choice([0, 4, 10])
    tasks: list[ScheduleTask] = []
    density = random.choice([0.1, 0.3, 0.6])
    for position in range(random.randint(2, most_tasks)):
        after = tuple(n for n in range(position) if random.random() < density)
        modes = tuple(_random_mode(random, tensor, vector, bandwidth) for _ in range(random.randint(1, most_modes)))
        tasks.append(ScheduleTask(f"t{position}", modes, after))
    return Problem(tuple(tasks), tensor, vector, bandwidth)


def _random_mode(random: Random, tensor: int, vector: int, bandwidth: int) -> Mode:
    def phase() -> ModePhase:
        most = (random.choice([0, tensor]), random.choice([0, vector]), random.choice([0, bandwidth]))
        return ModePhase(random.randint(1, 9), *(random.randint(0, m) for m in most))

    return Mode(tuple(phase() for _ in range(random.choice([1, 1, 2]))))
