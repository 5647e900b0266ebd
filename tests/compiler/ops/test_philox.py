import numpy as np

from optfuse.compiler.ops import philox

UNIFORM = ["0x1.bd640e0000000p-2", "0x1.a5feda0000000p-1", "0x1.7daa700000000p-2", "0x1.0a77520000000p-1"]
NORMAL = ["-0x1.68abe00000000p-2", "0x1.7fd06c0000000p-2", "0x1.4ebba20000000p-4", "-0x1.8041600000000p+0"]


def test_known_answer_of_random123():
    """The published vector of philox4x32-10 for counter 0, key 0, and what tl.rand makes of its first word."""
    words = philox._philox(np.int64(0), np.int64(0))  # noqa: SLF001
    assert [int(w) for w in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox.rand(np.int64(0), np.int64(0)) == np.float32(0x6627E8D5) * np.float32(4.6566127342e-10)


def test_four_neighbours_have_the_words_of_a_counter():
    for counter in (0, 5, (1 << 33) + 1):
        words = [int(word) for word in philox._philox(np.int64(7), np.int64(counter))]  # noqa: SLF001
        signed = [word if word < 1 << 31 else (1 << 32) - 1 - word for word in words]
        uniform = philox.rand(np.int64(7), 4 * counter + np.arange(4))
        assert uniform.tolist() == [float(np.float32(word) * np.float32(4.6566127342e-10)) for word in signed]


def test_frozen_values_of_triton():
    """What tl.rand and tl.randn gave for these seeds and offsets under Triton's interpreter.

    Each of its counters serves four neighbours here.
    """
    uniform = philox.rand(np.int64(-5), 4 * np.array([0, 1, (1 << 31) + 3, 1 << 33]))
    normal = philox.randn(np.int64(123456789012345), np.array([0, 1, (1 << 31) + 3, 1 << 33]))
    assert [float(v).hex() for v in uniform] == UNIFORM
    np.testing.assert_array_max_ulp(normal, np.array([float.fromhex(v) for v in NORMAL], np.float32), 4)


def test_uniform_in_range_with_the_right_moments():
    values = philox.rand(np.int64(42), np.arange(1 << 16))
    assert values.dtype == np.float32
    assert values.min() >= 0
    assert values.max() < 1
    assert abs(values.mean() - 0.5) < 0.01
    assert abs(values.var() - 1 / 12) < 0.01


def test_normal_moments():
    values = philox.randn(np.int64(-7), np.arange(1 << 16))
    assert values.dtype == np.float32
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1) < 0.02


def test_seed_and_offset_both_matter():
    base = philox.rand(np.int64(1), np.arange(64))
    assert not np.array_equal(base, philox.rand(np.int64(2), np.arange(64)))
    assert not np.array_equal(base, philox.rand(np.int64(1 + (1 << 32)), np.arange(64)))
    assert not np.array_equal(base, philox.rand(np.int64(1), np.arange(64) + (1 << 32)))
