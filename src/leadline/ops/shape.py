"""Ops that move elements without changing them, select some of them, or make constants."""

from leadline.ops.family import Family, words

LAYOUT = Family(
    kind="layout",
    names=words(
        """view view_as reshape reshape_as flatten unflatten ravel squeeze unsqueeze transpose permute movedim moveaxis
        swapaxes swapdims t T mT H mH contiguous clone detach data real channel_shuffle pixel_shuffle pixel_unshuffle
        flip roll rot90 alias to_sparse to_dense values requires_grad as_tensor asarray"""
    ),
    layout=True,
)
CAST = Family(
    kind="cast",
    names=words("to type type_as float half bfloat16 double int long cpu cuda bool byte"),
    layout=True,
)
SELECT = Family(
    kind="select",
    names=words(
        """getitem select narrow slice chunk split split_with_sizes tensor_split hsplit vsplit dsplit unbind
        index_select gather take take_along_dim masked_select diagonal diag tril triu unfold as_strided imag
        view_as_real view_as_complex index nonzero"""
    ),
)
JOIN = Family(
    kind="join",
    names=words(
        """cat concat concatenate stack hstack vstack dstack setitem index_put index_add index_copy index_fill scatter
        scatter_add scatter_reduce masked_scatter pad fold expand expand_as repeat repeat_interleave tile
        broadcast_to broadcast_tensors meshgrid copy block_diag diag_embed nested_tensor zero fill"""
    ),
)
CREATE = Family(
    kind="create",
    names=words(
        """zeros ones empty full arange linspace logspace eye tensor rand randn randint randperm zeros_like ones_like
        empty_like empty_strided full_like rand_like randn_like randint_like new_zeros new_ones new_empty
        new_empty_strided new_full new_tensor
        bernoulli multinomial normal uniform exponential poisson scalar_tensor from_numpy tril_indices triu_indices"""
    ),
)
INDEX = Family(
    kind="index",
    names=words(
        """eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not
        bitwise_xor isnan isinf isfinite isclose argmax argmin argsort sort topk kthvalue mode unique searchsorted
        bucketize bincount one_hot cummax cummin histc isin and or invert xor lshift rshift"""
    ),
)
TRANSFORM = Family(
    kind="transform",
    names=words(
        """fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn fft_rfftn
        fft_irfftn stft istft complex polar angle conj resolve_conj"""
    ),
)
