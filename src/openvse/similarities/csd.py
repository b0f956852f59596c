"""The similarity of two Gaussians by their closed-form sampled distance."""

from __future__ import annotations

from typing import ClassVar

from openvse.similarities.set_max import SetMax


class CSD(SetMax):
    """``s(i, t) = 1 - csd(i, t) / 2``, the score of the embeddings that ``gaussian`` makes.

    ``csd(i, t) = |m_i - m_t|^2 + sum_d (exp z_id + exp z_td)`` is the squared distance that samples of the two
    distributions have on average (PCME++, Chun, ICLR 2024, eq. 1). The score is the inner product of ``[m_i, u_i, 1]``
    and ``[m_t, 1, u_t]``; it is the cosine of the means where there is no variance.
    """

    indexable: ClassVar[bool] = True
    is_cosine: ClassVar[bool] = False
    reads_unit_vectors: ClassVar[bool] = False
    reads_gaussians: ClassVar[bool] = True
