"""Kernel classification over the naming of the libraries, and the names that mislead."""

from __future__ import annotations

import pytest

from gpuprof.analyzers.kernels import Kind, classify, is_communication, kind_of

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::"


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "ncclKernel_AllReduce",
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(unsigned)",
        "void c10d::symmetric_memory::one_shot_all_reduce_kernel<float, 4>(float**)",
        "void tensorrt_llm::kernels::twoShotAllReduceKernel<__half, 8>(AllReduceParams)",
        "void nvshmemi_transfer::put_kernel<long>(long*)",
        "msccl::mscclKernel_Sum_half_LL(ncclDevComm*)",
        "void deep_ep::internode_ll::dispatch<true, 3, 7168>(void*)",
    ],
)
def test_collectives_of_every_library_are_communication(name: str) -> None:
    assert is_communication(name)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("hipMemcpyAsync", Kind.COPY),
        ("Memcpy HtoD (Pageable -> Device)", Kind.COPY),
        ("__amd_rocclr_copyBuffer", Kind.COPY),
        ("__amd_rocclr_fillBufferAligned", Kind.COPY),
        ("hip_some_user_kernel", Kind.OTHER),
        ("triton_poi_fused_all_gather_into_tensor_mm_3", Kind.TRITON),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(int)",
            Kind.REDUCTION,
        ),
    ],
)
def test_names_that_only_sound_like_collectives_are_not(name: str, kind: Kind) -> None:
    """`^hip` and fused names were counted as communication by other tools."""
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    ("name", "kind", "matrix_units", "dtype"),
    [
        ("ampere_sgemm_128x64_tn", Kind.GEMM, False, "fp32"),
        ("volta_h884gemm_64x128_ldg8_nn", Kind.GEMM, True, "fp16"),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", Kind.GEMM, True, "fp16"),
        ("turing_fp16_s1688gemm_fp16_256x64_ldg8_f2f_tn", Kind.GEMM, True, "fp16"),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1>(Params)",
            Kind.GEMM,
            True,
            "tf32",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nt_align1>(Params)",
            Kind.GEMM,
            False,
            "fp32",
        ),
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_cublas",
            Kind.GEMM,
            True,
            "bf16",
        ),
        ("nvjet_tst_64x16_64x16_2x4_2cta_h_bz_bias_TNT", Kind.GEMM, True, "bf16"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT256x128x64_MI16x16x16x1_SN_1LDSB0", Kind.GEMM, True, "bf16"),
        ("Cijk_Ailk_Bljk_SB_MT64x64x8_SE_1LDSB0", Kind.GEMM, False, "fp32"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", Kind.GEMM, None, "bf16"),
        ("triton_tem_fused_addmm_12", Kind.GEMM, None, ""),
        ("void gemv2T_kernel_val<int, int, float, float>(int)", Kind.GEMM, False, "fp32"),
        ("volta_scudnn_128x64_relu_interior_nn_v1", Kind.CONVOLUTION, False, "fp32"),
        (
            "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tensor16x8x8",
            Kind.CONVOLUTION,
            True,
            "tf32",
        ),
        ("igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1_bt32x128x32", Kind.CONVOLUTION, True, "bf16"),
        (
            "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<cutlass::half_t>(P)",
            Kind.ATTENTION,
            True,
            "fp16",
        ),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKv", Kind.ATTENTION, True, "fp8"),
        ("kernel_unified_attention_3d", Kind.ATTENTION, None, ""),
    ],
)
def test_matrix_kernels_tell_their_units_and_type(
    name: str, kind: Kind, matrix_units: bool | None, dtype: str
) -> None:
    known = classify(name)
    assert (known.kind, known.matrix_units, known.dtype) == (kind, matrix_units, dtype)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (
            ELEMENTWISE + "CUDAFunctor_add<float>, at::detail::Array<char*, 3>>(int)",
            Kind.ELEMENTWISE,
        ),
        (ELEMENTWISE + "direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)", Kind.COPY),
        ("void cudnn::ops::convertTensor_kernel<float, float, float>(float)", Kind.COPY),
        ("void cudnn::ops::nchwToNhwcKernel<float, float>(float*)", Kind.COPY),
        ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2>(float)", Kind.NORMALIZATION),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>(f)", Kind.SOFTMAX),
        (
            "void splitKreduce_kernel<float, float, float, float>(cublasSplitKParams)",
            Kind.REDUCTION,
        ),
        ("split_embedding_backward_codegen_rowwise_adagrad_kernel(float)", Kind.EMBEDDING),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long*)", Kind.ELEMENTWISE),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(x)", Kind.EMBEDDING),
        ("void flashinfer::norm::FusedAddRMSNormKernel<8u, __half>(x)", Kind.NORMALIZATION),
        (
            "multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>",
            Kind.OPTIMIZER,
        ),
        ("void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long>>(i)", Kind.SORT),
        (
            "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride",
            Kind.RANDOM,
        ),
        ("triton__0d1d2d3de", Kind.TRITON),
        ("triton_red_fused_native_layer_norm_9", Kind.TRITON),
        ("my_kernel(float*)", Kind.OTHER),
        ("", Kind.OTHER),
    ],
)
def test_families_of_memory_bound_kernels(name: str, kind: Kind) -> None:
    assert kind_of(name) == kind


def test_winograd_and_fft_do_fewer_operations_than_counted() -> None:
    assert classify("volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1").reduced
    assert classify("void fft2d_r2c_32x32<float, false, 1u, false>(float2*)").reduced
    assert not classify("volta_scudnn_128x64_relu_interior_nn_v1").reduced


@pytest.mark.parametrize(
    ("name", "streaming"),
    [
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1_SN", True),
        ("Cijk_Ailk_Bljk_BBS_BH_MT256x128x64_MI16x16x16x1_SN", False),
        ("nvjet_tst_192x8_64x8_4x1_v_bz_TNT", True),
        ("nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN", False),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", True),
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32", True),
        (
            "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn>",
            True,
        ),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", False),
        ("volta_sgemm_32x128_tn", False),
        ("void gemv2T_kernel_val<int, int, float, float>(int)", True),
        ("void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16>", True),
    ],
)
def test_products_with_few_rows_stream_their_weights(name: str, streaming: bool) -> None:
    """Decoding launched from a graph has no shapes: the tile in the name is what tells it."""
    assert classify(name).streaming is streaming


def test_a_namespace_that_holds_gemm_is_no_product() -> None:
    assert kind_of("void fbgemm_gpu::_block_bucketize_features_cuda_kernel2<int>") != Kind.GEMM


def test_the_first_type_of_a_template_is_the_one_it_works_on() -> None:
    """A fused optimizer takes its learning rate as a double; it still works on floats."""
    fused = (
        "multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>, float const*, double, double>"
    )
    assert classify(fused).dtype == "fp32"


def test_generated_kernels_are_recognized() -> None:
    assert classify("triton_tem_fused_mm_0").generated
    assert classify("triton_poi_fused_add_0").generated
    assert not classify("triton_attention_of_the_user").generated


def test_a_hostile_name_is_classified_quickly_and_without_error() -> None:
    assert kind_of("<" * 200_000) == Kind.OTHER
