"""Fused output layer and cross entropy compared with PyTorch: nats, most likely tokens and gradients."""

import math

import pytest
import torch
from encodings_support import one_thread  # noqa: F401
from fused_support import DEVICE, poisoned_memory  # noqa: F401
from torch.utils._python_dispatch import TorchDispatchMode

from bearings.encodings.base import Encoding
from bearings.kernels.loss.cross_entropy import piece_rows, scaled_op, summed_nats, summed_nats_op, token_nats
from bearings.lightning_modules.transformer import Transformer

pytestmark = pytest.mark.usefixtures("one_thread", "poisoned_memory")


@pytest.mark.parametrize("vocabulary", [11, 9000, 60001])  # the last does not fit in registers
def test_nats_and_gradients_of_rows(vocabulary):
    from bearings.kernels.loss.softmax_rows import score_rows

    torch.manual_seed(0)
    logits = 3 * torch.randn(6, vocabulary, device=DEVICE)
    logits[4, [3, 7]] = 50.0  # a tie goes to the lower id
    targets = torch.randint(vocabulary, (6,), device=DEVICE)
    targets[1], targets[2], targets[4] = -100, logits[2].argmax(), 7
    leaf = logits.clone().requires_grad_()
    nats = torch.nn.functional.cross_entropy(leaf, targets, ignore_index=-100, reduction="none")
    nats.sum().backward()
    got, right = torch.full_like(nats, math.nan), torch.zeros(6, dtype=torch.bool, device=DEVICE)
    score_rows(logits, targets, got, right, -100)
    torch.testing.assert_close(got, nats.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits, leaf.detach(), rtol=0, atol=0)
    got.fill_(math.nan)
    score_rows(logits, targets, got, None, -100)
    torch.testing.assert_close(got, nats.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits, leaf.grad, rtol=1e-4, atol=1e-7)
    assert right.tolist() == [bool(t == row.argmax()) for t, row in zip(targets, leaf, strict=True)]
    assert right[2]
    assert not right[4]


def test_padding_columns_do_not_change_results():
    from bearings.kernels.loss.softmax_rows import score_rows

    torch.manual_seed(0)
    logits, targets = torch.randn(4, 100, device=DEVICE), torch.tensor([0, 99, 7, 100], device=DEVICE)
    padded = torch.nn.functional.pad(logits, (0, 28), value=-math.inf)
    nats, right = torch.zeros(4, device=DEVICE), torch.zeros(4, dtype=torch.bool, device=DEVICE)
    padded_nats, padded_right = nats.clone(), right.clone()
    score_rows(logits, targets, nats, right, -100)
    score_rows(padded, targets, padded_nats, padded_right, -100, 100)
    assert padded_nats[3].isnan()  # a target in the padding is outside the vocabulary
    assert torch.equal(padded_nats[:3], nats[:3])
    assert torch.equal(padded_right, right)
    score_rows(logits, targets, nats, None, -100)
    score_rows(padded, targets, padded_nats, None, -100, 100)
    torch.testing.assert_close(padded_nats[:3], nats[:3])
    torch.testing.assert_close(padded[:, :100], logits)
    assert not padded[:, 100:].any()


@pytest.mark.parametrize("target", [-1, 11, 2**40])
def test_target_outside_vocabulary_gives_nan(target):
    from bearings.kernels.loss.softmax_rows import score_rows

    logits, targets = torch.randn(2, 11, device=DEVICE), torch.tensor([3, target], device=DEVICE)
    nats, right = torch.zeros(2, device=DEVICE), torch.zeros(2, dtype=torch.bool, device=DEVICE)
    score_rows(logits, targets, nats, right, -100)
    assert nats.isnan().tolist() == [False, True]
    assert not right[1]
    expected, nats = logits.softmax(-1), torch.zeros(2, device=DEVICE)
    expected[0, 3] -= 1
    score_rows(logits, targets, nats, None, -100)
    assert nats.isnan().tolist() == [False, True]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-7)


def test_scaled_rounds_once():
    torch.manual_seed(0)
    x, factor = torch.randn(3, 5001, device=DEVICE).half(), torch.tensor(1 / 3, device=DEVICE)
    assert torch.equal(scaled_op(x, factor), (x.float() * factor).half())
    torch.library.opcheck(scaled_op.registered, (x, factor))


@pytest.mark.parametrize(("tokens", "pieces"), [(32768, 3), (8192, 1), (16500, 2), (1, 1)])
def test_chunks_of_logits_have_equal_size(tokens, pieces):
    rows = piece_rows(tokens, 50304)
    assert rows % 128 == 0
    assert -(-tokens // rows) == pieces
    assert rows * pieces - tokens < 128 * pieces


def test_chunked_token_nats(monkeypatch):
    from bearings.kernels.loss import cross_entropy as loss

    torch.manual_seed(0)
    x, weight = torch.randn(300, 8, device=DEVICE), torch.randn(20, 8, device=DEVICE)
    targets = torch.randint(20, (300,), device=DEVICE)
    targets[::3] = -100
    monkeypatch.setattr(loss, "LOGITS", 128 * 20)
    got = token_nats(x, weight, targets)
    wanted = torch.nn.functional.cross_entropy(x @ weight.T, targets, ignore_index=-100, reduction="none")
    torch.testing.assert_close(got.nats, wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(got.right, (x @ weight.T).argmax(-1) == targets)
    torch.testing.assert_close(summed_nats(x, weight, targets), wanted.sum(), rtol=1e-5, atol=1e-5)


def test_an_ignored_token_of_the_vocabulary_is_never_right():
    x, targets = torch.eye(3, device=DEVICE), torch.tensor([0, 1, 0], device=DEVICE)
    nats, right = token_nats(x, 2 * torch.eye(3, device=DEVICE), targets, ignored=1)
    assert (nats > 0).tolist() == [True, False, True]
    assert right.tolist() == [True, False, False]


@pytest.mark.parametrize("function", [summed_nats, token_nats])
@pytest.mark.parametrize("count", [0, 128, 400])
def test_another_number_of_targets_raises(monkeypatch, function, count):
    """Kernels would read beyond too few targets, and chunks of tokens would ignore those after the last token."""
    from bearings.kernels.loss import cross_entropy as loss

    monkeypatch.setattr(loss, "LOGITS_ON_CPU", 128 * 20)
    x, weight = torch.randn(300, 4, device=DEVICE), torch.randn(20, 4, device=DEVICE)
    targets = torch.zeros(count, dtype=torch.int64, device=DEVICE)
    with pytest.raises(ValueError, match=rf"targets \[{count}\] with x \[300, 4\]: there must be one for each row"):
        function(x, weight, targets)


def test_cpu_scoring_holds_few_logits_in_memory(monkeypatch):
    """The results equal those from all logits at once."""
    from bearings.kernels.loss import cross_entropy as loss
    from bearings.lightning_modules.cost import scoring_bytes

    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            if isinstance(made, torch.Tensor):
                self.numel = max(self.numel, made.numel())
            return made

    torch.manual_seed(0)
    tokens, vocabulary = 1000, 50257
    x, weight = torch.randn(tokens, 2), torch.randn(vocabulary, 2)
    targets = torch.randint(vocabulary, (tokens,))
    with Largest() as seen:
        got = token_nats(x, weight, targets)
    assert seen.numel <= 1.5 * loss.LOGITS_ON_CPU < tokens * vocabulary / 1.9
    assert 8 * seen.numel == scoring_bytes(tokens, weight, "32-true")
    assert scoring_bytes(16384, weight, "32-true") < 2**28
    monkeypatch.setattr(loss, "LOGITS_ON_CPU", loss.LOGITS)
    whole = token_nats(x, weight, targets)
    torch.testing.assert_close(got.nats, whole.nats, rtol=1e-6, atol=1e-5)
    assert torch.equal(got.right, whole.right)


def test_autocast_leaves_float64_unchanged():
    """PyTorch's autocast does not lower float64 either."""
    torch.manual_seed(0)
    model = Transformer(11, Encoding, width=16, layers=1, heads=2).double().to(DEVICE)
    tokens = torch.randint(11, (2, 9), device=DEVICE)
    logits, nats, each = model(tokens), model.nats(tokens, tokens), model.token_nats(tokens, tokens).nats
    with torch.autocast(DEVICE.type, torch.bfloat16):
        torch.testing.assert_close(model(tokens), logits)
        torch.testing.assert_close(model.nats(tokens, tokens), nats)
        torch.testing.assert_close(model.token_nats(tokens, tokens).nats, each)


@pytest.mark.gpu
@pytest.mark.parametrize("vocabulary", [5056, 5001])  # a multiple of ALIGNED, and one to be padded
def test_fused_loss_error_is_within_budget(monkeypatch, vocabulary):
    from bearings.kernels.loss import cross_entropy as loss

    torch.manual_seed(0)
    monkeypatch.setattr(loss, "LOGITS", 256 * 5000)
    x, weight = torch.randn(1000, 64, device=DEVICE), torch.randn(vocabulary, 64, device=DEVICE)
    targets = torch.randint(vocabulary, (1000,), device=DEVICE)
    targets[::7] = -100
    found = []
    for function, dtype in ((summed_nats, torch.bfloat16), (None, torch.bfloat16), (None, torch.float64)):
        leaves = [tensor.bfloat16().to(dtype).requires_grad_() for tensor in (x, weight)]
        if function is None:
            logits = torch.nn.functional.linear(*leaves)
            logits = logits if dtype == torch.float64 else logits.float()
            nats = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
        else:
            nats = function(*leaves, targets)
        (2 * nats).backward()
        found.append([nats.detach().double(), *(leaf.grad.double() for leaf in leaves)])
    for ours, low, high in zip(*found, strict=True):
        error, budget = ((got - high).norm() / high.norm() for got in (ours, low))
        assert error <= 2 * budget + 2**-8, f"{error:.1e}, of the plain computation {budget:.1e}"
    args = (x.requires_grad_(), weight.requires_grad_(), targets, torch.bfloat16, -100)
    torch.library.opcheck(summed_nats_op.registered, args, test_utils=("test_schema", "test_faketensor"))
