"""The models: their sizes, and that what is written out here is what torch has in one piece."""

import pytest
import torch
from torch import nn

from gossamer.tasks import TASKS
from gossamer.tasks._transformer import Attention, causal_mask
from gossamer.tasks.chargpt import CharGPT
from gossamer.tasks.lstm import LstmLayer
from gossamer.tasks.translation import PAD, Translator


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("digits", 1_946),
        ("resnet20", 269_722),  # 0.27 M in He et al. 2015
        ("resnet20-gn", 269_722),
        ("densenet100", 769_162),  # 0.8 M in Huang et al. 2017
        ("vgg16", 14_724_042),
        ("resnet50", 25_557_032),
        ("lstm", 7_330_478),
        ("lstm-sgd", 7_330_478),
        ("chargpt", 834_304),
        ("translation", 8_075_072),
    ],
)
def test_number_of_parameters(name: str, num_parameters: int) -> None:
    assert sum(parameter.numel() for parameter in TASKS[name].model().parameters()) == num_parameters


@pytest.mark.parametrize("name", TASKS)
def test_the_random_start_follows_the_seed(name: str) -> None:
    def start(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(TASKS[name].model().parameters())

    assert torch.equal(start(1), start(1))
    assert not torch.equal(start(1), start(2))


def test_the_written_out_lstm_is_the_lstm_of_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = LstmLayer(5, 7).double(), nn.LSTM(5, 7, batch_first=True).double()
    with torch.no_grad():
        ours.from_input.weight.copy_(theirs.weight_ih_l0)
        ours.from_input.bias.copy_(theirs.bias_ih_l0 + theirs.bias_hh_l0)
        ours.from_state.weight.copy_(theirs.weight_hh_l0)
    x = torch.randn(3, 11, 5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(ours(x), theirs(x)[0], rtol=1e-12, atol=1e-12)
    ours_back, theirs_back = (torch.autograd.grad(said.square().sum(), x)[0] for said in (ours(x), theirs(x)[0]))
    torch.testing.assert_close(ours_back, theirs_back, rtol=1e-10, atol=1e-12)


def test_the_written_out_attention_is_that_of_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = Attention(8, 2).double(), nn.MultiheadAttention(8, 2, batch_first=True).double()
    nn.init.normal_(theirs.in_proj_bias)
    with torch.no_grad():
        for number, part in enumerate((ours.query, ours.key, ours.value)):
            part.weight.copy_(theirs.in_proj_weight[8 * number : 8 * number + 8])
            part.bias.copy_(theirs.in_proj_bias[8 * number : 8 * number + 8])
        ours.out.load_state_dict(theirs.out_proj.state_dict())
    x, memory = (torch.randn(3, length, 8, dtype=torch.float64) for length in (5, 5))
    mask = causal_mask(5, x.device)
    expected, _ = theirs(x, memory, memory, attn_mask=~mask)
    torch.testing.assert_close(ours(x, memory, mask), expected, rtol=1e-12, atol=1e-12)


def test_the_gpt_does_not_look_ahead() -> None:
    model = CharGPT(width=16, layers=2)
    text = torch.randint(128, (2, 10))
    changed = text.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 128
    before, after = model(text), model(changed)
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert (before[:, 6:] - after[:, 6:]).abs().max() > 1e-3


def test_the_translator_sees_the_whole_source_but_no_padding_and_nothing_ahead() -> None:
    torch.manual_seed(0)
    model = Translator(vocabulary=30, length=6, width=16, layers=2).eval()
    source, target = torch.randint(4, 30, (2, 6)), torch.randint(4, 30, (2, 6))
    source[:, 4:] = PAD
    said = model(torch.cat((source, target), 1))

    ahead = target.clone()
    ahead[:, 3:] = (ahead[:, 3:] - 3) % 26 + 4
    torch.testing.assert_close(model(torch.cat((source, ahead), 1))[:, :3], said[:, :3])

    other = source.clone()
    other[:, 3] = (other[:, 3] - 3) % 26 + 4
    assert (model(torch.cat((other, target), 1))[:, 0] - said[:, 0]).abs().max() > 1e-4

    with torch.no_grad():
        model.source.tokens.weight[PAD] += 1.0
    torch.testing.assert_close(model(torch.cat((source, target), 1)), said)
