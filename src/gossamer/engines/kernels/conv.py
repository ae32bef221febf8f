"""Convolutions of stacked replicas on a GPU: every replica has weights of its own, so it is N small ones in one call.

`vmap` turns them into one convolution with N groups. cuDNN brings such a convolution to another memory layout and back,
which takes longer than the convolution itself, and its fast kernels are chosen by a race: two runs may differ in the
last bits. These kernels read the layout as it is, and sum in an order that depends on the shapes alone.

    y[n,b,o,p] = Σ_{c,i,j} w[n,o,c,i,j] x[n,b,c, p + (i,j) − padding]        kernels 1x1 and 3x3 of "same" size

Products of bfloat16 numbers, sums in float32. A shift by a row keeps a load aligned, a shift by a column does not: so
the products with the left, middle and right column of a kernel are summed apart, and the sums are shifted, once, at the
end. Of a stride of 2, only every other sum is stored; its gradients see `dy` with zeros in between. The gradient for
`x` is a convolution of `dy` with the weights turned around.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_PIXELS = 128
"""Pixels of one program with up to 32 channels, of which there may be many; with 64 it takes half as many."""
_MANY_PROGRAMS = 4096
"""Enough to fill a large GPU: sums over fewer are split."""


@triton.jit
def _correlate(
    x, w, y, N: tl.constexpr, B: tl.constexpr, C: tl.constexpr, Q: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    K: tl.constexpr, STRIDE: tl.constexpr, PIXELS: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """y [B, N·Q, H/STRIDE, W/STRIDE] from x [B, N·C, H, W] and w [N, K, K, Q, C]."""
    n = tl.program_id(2).to(tl.int64)
    q = tl.program_id(1) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    b = pixel // (H * W)
    here = pixel % (H * W)
    row = here // W
    column = pixel % W
    x_here = x + (b.to(tl.int64) * N + n) * (C * H * W) + here
    left = tl.zeros([BLOCK_Q, PIXELS], tl.float32)
    middle = tl.zeros([BLOCK_Q, PIXELS], tl.float32)
    right = tl.zeros([BLOCK_Q, PIXELS], tl.float32)
    for start in range(0, C, BLOCK_C):
        c = start + tl.arange(0, BLOCK_C)
        w_here = w + n * (K * K * Q * C) + q[:, None] * C + c[None, :]
        w_there = (q < Q)[:, None] & (c < C)[None, :]
        for i in tl.static_range(K):
            shift = i - K // 2
            there = (b < B) & (row + shift >= 0) & (row + shift < H)
            values = tl.load(
                x_here[None, :] + (c[:, None] * (H * W) + shift * W), mask=(c < C)[:, None] & there[None, :], other=0.0
            )
            if K == 3:
                weights = tl.load(w_here + (3 * i) * Q * C, mask=w_there, other=0.0)
                left = tl.dot(weights, values, left)
                weights = tl.load(w_here + (3 * i + 2) * Q * C, mask=w_there, other=0.0)
                right = tl.dot(weights, values, right)
            weights = tl.load(w_here + (K * i + K // 2) * Q * C, mask=w_there, other=0.0)
            middle = tl.dot(weights, values, middle)
    if K == 3:
        place = tl.arange(0, PIXELS)
        before = tl.broadcast_to(tl.maximum(place - 1, 0)[None, :], [BLOCK_Q, PIXELS])
        after = tl.broadcast_to(tl.minimum(place + 1, PIXELS - 1)[None, :], [BLOCK_Q, PIXELS])
        middle += tl.where((column > 0)[None, :], tl.gather(left, before, 1), 0.0)
        middle += tl.where((column < W - 1)[None, :], tl.gather(right, after, 1), 0.0)
    stored = (b < B) & (row % STRIDE == 0) & (column % STRIDE == 0)
    size: tl.constexpr = (H // STRIDE) * (W // STRIDE)
    at = y + ((b.to(tl.int64) * N + n) * (Q * size) + row // STRIDE * (W // STRIDE) + column // STRIDE)[None, :]
    tl.store(at + q[:, None] * size, middle.to(y.dtype.element_ty), mask=(q < Q)[:, None] & stored[None, :])


@triton.jit
def _weight_gradient(
    x, dy, dw, N: tl.constexpr, B: tl.constexpr, C: tl.constexpr, Q: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    K: tl.constexpr, SPLITS: tl.constexpr, SHARE: tl.constexpr, PIXELS: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dw [SPLITS, N, K, K, Q, C]: each split sums SHARE of the pixels, each program one row of the kernel."""
    n = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    i = tl.program_id(0) % K
    block = tl.program_id(0) // K
    blocks_c: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    c = block % blocks_c * BLOCK_C + tl.arange(0, BLOCK_C)
    q = block // blocks_c * BLOCK_Q + tl.arange(0, BLOCK_Q)
    shift = i - K // 2
    place = tl.arange(0, PIXELS)
    before = tl.broadcast_to(tl.maximum(place - 1, 0)[None, :], [BLOCK_Q, PIXELS])
    after = tl.broadcast_to(tl.minimum(place + 1, PIXELS - 1)[None, :], [BLOCK_Q, PIXELS])
    left = tl.zeros([BLOCK_Q, BLOCK_C], tl.float32)
    middle = tl.zeros([BLOCK_Q, BLOCK_C], tl.float32)
    right = tl.zeros([BLOCK_Q, BLOCK_C], tl.float32)
    for start in range(0, SHARE, PIXELS):
        pixel = split * SHARE + start + place
        b = pixel // (H * W)
        here = pixel % (H * W)
        row = here // W
        column = pixel % W
        image = b.to(tl.int64) * N + n
        slope = tl.load(
            dy + (image * (Q * H * W) + here)[None, :] + q[:, None] * (H * W),
            mask=(q < Q)[:, None] & (b < B)[None, :],
            other=0.0,
        )
        there = (b < B) & (row + shift >= 0) & (row + shift < H)
        values = tl.load(
            x + (image * (C * H * W) + here)[None, :] + (c[:, None] * (H * W) + shift * W),
            mask=(c < C)[:, None] & there[None, :],
            other=0.0,
        )
        turned = tl.trans(values)
        middle = tl.dot(slope, turned, middle)
        if K == 3:
            zero = tl.zeros([BLOCK_Q, PIXELS], slope.dtype)
            left = tl.dot(tl.where((column < W - 1)[None, :], tl.gather(slope, after, 1), zero), turned, left)
            right = tl.dot(tl.where((column > 0)[None, :], tl.gather(slope, before, 1), zero), turned, right)
    at = dw + (split * N + n) * (K * K * Q * C) + q[:, None] * C + c[None, :]
    inside = (q < Q)[:, None] & (c < C)[None, :]
    tl.store(at + (K * i + K // 2) * Q * C, middle.to(dw.dtype.element_ty), mask=inside)
    if K == 3:
        tl.store(at + (3 * i) * Q * C, left.to(dw.dtype.element_ty), mask=inside)
        tl.store(at + (3 * i + 2) * Q * C, right.to(dw.dtype.element_ty), mask=inside)


def takes(height: int, width: int, kernel: tuple[int, int], stride: int, padding: int) -> bool:
    """Whether these kernels do such a convolution: rows must fill the tiles of the programs."""
    return (
        kernel in ((1, 1), (3, 3))
        and padding == kernel[0] // 2
        and stride in (1, 2)
        and height % stride == width % stride == 0
        and 2 <= width <= 64
        and width & (width - 1) == 0
    )


def _block(channels: int, most: int) -> int:
    return min(max(triton.next_power_of_2(channels), 16), most)


def _pixels(block: int) -> int:
    return _PIXELS if block <= 32 else _PIXELS // 2


def _correlated(x: Tensor, taps: Tensor, stride: int) -> Tensor:
    """`taps` are weights [N, K, K, Q, C]."""
    batch, _, height, width = x.shape
    groups, kernel, _, num_q, num_c = taps.shape
    y = x.new_empty(batch, groups * num_q, height // stride, width // stride)
    block_q = _block(num_q, 64)
    pixels = _pixels(block_q)
    grid = (triton.cdiv(batch * height * width, pixels), triton.cdiv(num_q, block_q), groups)
    _correlate[grid](
        x.contiguous(), taps, y, groups, batch, num_c, num_q, height, width,
        kernel, stride, pixels, block_q, _block(num_c, 64), num_warps=block_q // 16,
    )  # fmt: skip
    return y


def _taps(w: Tensor, groups: int) -> Tensor:
    """[N·O, C, K, K] to [N, K, K, O, C]."""
    return w.unflatten(0, (groups, -1)).permute(0, 3, 4, 1, 2)


def _dilated(dy: Tensor, stride: int) -> Tensor:
    """With zeros in between."""
    if stride == 1:
        return dy
    full = dy.new_zeros(*dy.shape[:2], stride * dy.shape[2], stride * dy.shape[3])
    full[..., ::stride, ::stride] = dy
    return full


@torch.library.custom_op("gossamer::stacked_conv", mutates_args=())
def stacked_conv(x: Tensor, w: Tensor, groups: int, stride: int) -> Tensor:
    """x [B, N·C, H, W] with w [N·O, C, K, K]: [B, N·O, H/stride, W/stride]."""
    return _correlated(x, _taps(w, groups).contiguous(), stride)


@stacked_conv.register_fake
def _(x: Tensor, w: Tensor, groups: int, stride: int) -> Tensor:
    return x.new_empty(x.shape[0], w.shape[0], x.shape[2] // stride, x.shape[3] // stride)


@torch.library.custom_op("gossamer::stacked_conv_dx", mutates_args=())
def stacked_conv_dx(dy: Tensor, w: Tensor, groups: int, stride: int) -> Tensor:
    """The gradient for x."""
    turned = _taps(w, groups).flip(1, 2).transpose(3, 4).contiguous()
    return _correlated(_dilated(dy, stride), turned, 1)


@stacked_conv_dx.register_fake
def _(dy: Tensor, w: Tensor, groups: int, stride: int) -> Tensor:
    return dy.new_empty(dy.shape[0], groups * w.shape[1], stride * dy.shape[2], stride * dy.shape[3])


@torch.library.custom_op("gossamer::stacked_conv_dw", mutates_args=())
def stacked_conv_dw(dy: Tensor, x: Tensor, kernel: int, groups: int, stride: int) -> Tensor:
    """The gradient for w."""
    batch, _, height, width = x.shape
    num_q, num_c = dy.shape[1] // groups, x.shape[1] // groups
    block_q, block_c = _block(num_q, 64), _block(num_c, 64)
    blocks = kernel * triton.cdiv(num_q, block_q) * triton.cdiv(num_c, block_c)
    pixels = _pixels(max(block_q, block_c))
    tiles = triton.cdiv(batch * height * width, pixels)
    splits = max(min(_MANY_PROGRAMS // (blocks * groups), tiles // 4), 1)
    share = triton.cdiv(tiles, splits) * pixels
    parts = torch.empty(
        (splits, groups, kernel, kernel, num_q, num_c),
        device=x.device,
        dtype=x.dtype if splits == 1 else torch.float32,
    )
    _weight_gradient[(blocks, splits, groups)](
        x.contiguous(), _dilated(dy, stride).contiguous(), parts, groups, batch, num_c, num_q, height, width,
        kernel, splits, share, pixels, block_q, block_c, num_warps=max(block_q, block_c) // 16,
    )  # fmt: skip
    whole = parts[0] if splits == 1 else parts.sum(0).to(x.dtype)
    return whole.permute(0, 3, 4, 1, 2).reshape(groups * num_q, num_c, kernel, kernel).contiguous()


@stacked_conv_dw.register_fake
def _(dy: Tensor, x: Tensor, kernel: int, groups: int, stride: int) -> Tensor:
    return x.new_empty(dy.shape[1], x.shape[1] // groups, kernel, kernel)
