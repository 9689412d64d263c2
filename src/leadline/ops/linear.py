"""Ops that multiply by a weight, or by another signal."""

from leadline.ops.family import Family, words

WEIGHT = Family(
    kind="weight",
    names=words(
        """linear bilinear conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d
        conv_tbc"""
    ),
)
MATMUL = Family(  # a weight if one side is made of parameters, else a product of two signals
    kind="matmul",
    names=words(
        """matmul mm bmm mv addmm addbmm baddbmm addmv einsum tensordot inner dot outer ger chain_matmul kron grouped_mm
        linalg_solve_triangular"""
    ),
)
RECURRENT = Family(
    kind="recurrent", names=words("lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell")
)
EMBEDDING = Family(kind="embedding", names=words("embedding embedding_bag"))
