"""Numbers, names and foreign text read the same, and stay harmless, in every report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.diagnoses import HOSTILE
from gpuprof.analyzers import wording
from gpuprof.errors import GpuprofError
from gpuprof.reports import text
from gpuprof.reports.words import ENGLISH, catalog


@pytest.mark.parametrize(
    ("full", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
            "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>)",
            "vectorized_elementwise_kernel<CUDAFunctor_add>",
        ),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_32x6_tn_align4>(Params)",
         "cutlass_80_tensorop_s1688gemm_128x64_32x6_tn_align4"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
         "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 4>(float*)",
         "CatArrayBatchedCopy"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("triton_poi_fused_add_relu_0d1d2d", "triton_poi_fused_add_relu_0d1d2d"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bLi256EEEvPT_", "add_rmsnorm_quant_kernel"),
        ("_Z9my_kernelPfi", "my_kernel"),
        ("_ZN999x", "x"),
        ("", ""),
        ("<<<>>>", "<<<>>>"),
    ],
)  # fmt: skip
def test_short_kernel_name_keeps_what_tells_kernels_apart(full: str, short: str) -> None:
    assert text.short_kernel_name(full) == short


@given(st.text(max_size=400))
def test_short_kernel_name_is_short_and_printable_for_any_name(name: str) -> None:
    short = text.short_kernel_name(name)
    assert len(short) <= text.MAX_KERNEL_NAME
    assert "\x1b" not in short
    assert "\n" not in short


def test_short_kernel_name_of_a_million_characters_is_bounded() -> None:
    assert len(text.short_kernel_name("<" * 1_000_000 + "x")) <= text.MAX_KERNEL_NAME


@given(st.text())
def test_clean_text_is_one_line_without_control_characters(value: str) -> None:
    cleaned = text.clean(value + HOSTILE)
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in cleaned)
    assert not set(cleaned) & set("\u2028\u2029\u202e\u2066\ufeff")
    cleaned.encode("utf-8")
    assert len(cleaned) <= text.MAX_TEXT


def test_clean_block_keeps_the_layout_of_code() -> None:
    assert text.clean_block("a:\r\n    b\x1b[0m\n") == "a:\n    b\ufffd[0m\n"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(175.2, "175.2 ms"), (9.04, "9.04 ms"), (0.31, "310 µs"), (0.004, "4.0 µs"), (0, "0.00 ms"),
     (1_240, "1,240 ms"), (90_000, "90.0 s"), (-12.34, "-12.3 ms"), (0.99951, "1.00 ms"),
     (0.9994, "999 µs"), (9.996, "10.0 ms"), (999.6, "1,000 ms"), (9_999.6, "10.0 s")],
)  # fmt: skip
def test_durations_take_the_unit_that_reads_best(value: float, shown: str) -> None:
    plain = text.milliseconds(value).replace(text.NBSP, " ")
    assert plain == shown


@given(st.floats(0, 1e6))
def test_no_duration_is_shown_in_a_unit_too_small_for_it(value: float) -> None:
    """1000 µs are a millisecond, also where rounding makes them so."""
    number, unit = text.milliseconds(value).replace(",", "").split(text.NBSP)
    assert unit != "µs" or float(number) < 1_000
    assert unit != "ms" or float(number) < 10_000


def test_analyzers_and_reports_write_a_duration_alike() -> None:
    """A sentence and the table under it show one number."""
    for value in (0.0456, 0.31, 1.234, 97.35, 117.57, 999.96, 2_543.2, 12_345.6):
        shown = text.milliseconds(value).replace(text.NBSP, " ")
        assert wording.milliseconds(value) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.336, "34 %"), (0.0086, "0.9 %"), (0.0004, "< 0.1 %"), (0, "0 %"), (1, "100 %")],
)
def test_percentages_are_as_exact_as_they_deserve(share: float, shown: str) -> None:
    assert text.percent(share).replace(text.NBSP, " ") == shown


def test_ranges_that_round_to_one_number_are_one_number() -> None:
    assert text.percent_range(0.312, 0.361) == f"31–36{text.NBSP}%"
    assert text.percent_range(0.31, 0.312) == f"31{text.NBSP}%"


def test_runs_of_ranks_are_folded() -> None:
    assert text.rank_list([7, 0, 1, 2, 3, 9, 10]) == "0–3, 7, 9, 10"
    assert text.rank_list([]) == ""


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=12).filter(lambda shares: sum(shares) > 1e-6),
    st.floats(0.01, 1e6),
    st.integers(0, 3),
)
def test_apportioned_parts_add_up_to_the_rounded_total(
    shares: list[float], total: float, digits: int
) -> None:
    parts = text.apportion(shares, total, digits)
    unit = 10.0**-digits
    assert round(sum(parts) / unit) == round(total / unit)
    exact = [share / sum(shares) * total for share in shares]
    assert all(abs(p - e) <= 1.001 * unit + 1e-9 * total for p, e in zip(parts, exact, strict=True))


def test_an_unknown_language_is_refused_in_one_line() -> None:
    with pytest.raises(GpuprofError, match="no wording for the language"):
        catalog("tlh")


def test_every_bucket_and_cause_has_a_wording() -> None:
    from gpuprof.diagnosis import BUCKETS, CAUSES

    assert all(f"bucket.{name}" in ENGLISH and f"about.{name}" in ENGLISH for name in BUCKETS)
    assert all(f"cause.{name}" in ENGLISH for name in CAUSES)


def test_sentences_start_large_and_end_with_a_stop_but_identifiers_stay() -> None:
    assert text.sentence("kernels fill the device") == "Kernels fill the device."
    assert text.sentence("num_workers is 0") == "num_workers is 0."
    assert text.sentence("Why?") == "Why?"
    assert text.sentence("") == ""
