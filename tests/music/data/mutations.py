"""Damaged copies of good files, the same ones for the same seed: whatever reads files must stand them."""

import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence

INTERESTING = (0x00, 0x01, 0x7F, 0x80, 0xFF)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A copy with one to a dozen faults: bytes flipped, overwritten, inserted, deleted, doubled, cut off."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 12))):
        if not out:
            break
        # Headers decide most, so half of the faults go to the first bytes.
        at = rng.randrange(len(out) if rng.random() < 0.5 else min(len(out), 160))
        length = rng.choice((1, 1, 2, 4, 8, 64))
        kind = rng.randrange(8)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.choice(INTERESTING)
        elif kind == 2:
            out[at : at + length] = rng.randbytes(length)
        elif kind == 3:
            out[at:at] = rng.randbytes(length)
        elif kind == 4:
            del out[at : at + length]
        elif kind == 5:
            out[at:at] = out[at : at + length * 8]
        elif kind == 6:
            number = rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, rng.randrange(2**32)))
            out[at : at + 4] = number.to_bytes(4, rng.choice(("little", "big")))
        else:
            del out[at:]
    return bytes(out)


def survive(
    samples: Sequence[bytes],
    read: Callable[[bytes], object],
    refusal: type[Exception],
    count: int,
    *,
    seed: int = 0,
    damage: Callable[[bytes, random.Random], bytes] = mutate,
    memory: int = 256 << 20,
    seconds: float = 5.0,
) -> Counter[str]:
    """Read `count` damaged copies: each is read or refused by `refusal` in bounded time and memory."""
    outcomes: Counter[str] = Counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        data = damage(rng.choice(samples), rng)
        start = time.process_time()
        try:
            read(data)
            outcomes["read"] += 1
        except refusal as error:
            message = str(error)
            outcomes["refused" if "\n" not in message else "more than a line"] += 1
        except BaseException as error:
            raise AssertionError(f"mutation {number} of seed {seed}: {error!r}") from error
        assert time.process_time() - start < seconds, f"mutation {number} of seed {seed} took too long"
    assert not outcomes["more than a line"]
    # The high-water mark of the process in KB (Linux): sees what C and C++ code takes, too.
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < memory, f"{grown >> 20} MB were taken"
    return outcomes
