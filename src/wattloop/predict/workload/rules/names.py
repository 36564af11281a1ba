"""Names of aten's operations that pass over their tensors, by what they do."""

__all__ = [
    "COPIES",
    "FILLS",
    "INDEXINGS",
    "INTO_ZEROS",
    "RANDOMS",
    "REDUCTIONS",
    "SAMPLINGS",
    "SORTS",
    "VIEWS",
]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


VIEWS = _words("""
detach alias lift_fresh lift _unsafe_view _reshape_alias view _view_copy reshape empty
empty_like empty_strided new_empty new_empty_strided resize resize_ set_ _local_scalar_dense
is_same_size sym_size sym_stride sym_numel _version as_strided unsafe_split
unsafe_split_with_sizes resize_as empty_permuted
""")
FILLS = _words("""
zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full arange zero fill
linspace logspace eye scalar_tensor tril_indices triu_indices _efficientzerotensor
""")
REDUCTIONS = _words("""
sum mean amax amin max min argmax argmin any all prod norm linalg_vector_norm var var_mean std
std_mean logsumexp cumsum cumprod cummax cummin count_nonzero aminmax median nansum
logcumsumexp _log_softmax_sum trace bincount histc equal dist nanmedian mode _is_all_true
_is_any_true _logcumsumexp _cummax_helper _cummin_helper
""")
COPIES = _words("""
clone copy _to_copy cat stack constant_pad_nd repeat roll flip reflection_pad1d
reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d im2col
col2im tril triu contiguous pixel_shuffle pixel_unshuffle channel_shuffle as_strided_scatter
select_scatter slice_scatter diagonal_scatter expand_copy permute_copy diag_embed block_diag
rot90 _pad_circular split_with_sizes_copy unbind_copy
""")
INTO_ZEROS = _words("""
slice_backward select_backward diagonal_backward unfold_backward as_strided_backward
""")
INDEXINGS = _words("""
index index_put _index_put_impl _unsafe_index _unsafe_index_put index_select index_add
index_copy index_fill gather scatter scatter_add scatter_reduce take put masked_select nonzero
repeat_interleave masked_scatter take_along_dim _embedding_bag grid_sampler_2d grid_sampler_3d
grid_sampler_2d_backward embedding_bag index_reduce _embedding_bag_forward_only
""")
SORTS = _words("""
sort topk argsort kthvalue unique _unique2 unique_dim randperm msort unique_consecutive
""")
RANDOMS = _words("""
native_dropout bernoulli uniform normal rand randn rand_like randn_like randint randint_like
exponential multinomial random log_normal cauchy geometric _fused_dropout
""")
SAMPLINGS = _words("""
upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d
upsample_trilinear3d upsample_bicubic2d _upsample_nearest_exact1d _upsample_nearest_exact2d
_upsample_bilinear2d_aa _upsample_bicubic2d_aa _weight_norm_interface glu celu lerp isin
_cdist_forward _fused_moving_avg_obs_fq_helper masked_fill floor_divide
bucketize searchsorted complex polar hardswish log_sigmoid_forward _prelu_kernel rsub addr
affine_grid_generator _masked_scale rrelu_with_noise max_unpool2d max_unpool3d
""")
