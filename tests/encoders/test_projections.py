import pytest
import torch

from openvse.encoders.projections import PROJECTIONS, BiGRUProjection, LinearProjection, ResidualMLP
from openvse.errors import RecipeError
from tests.naming import names, refusal


def ragged(seed: int = 0, width: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    mask = torch.tensor([[True, True, True, False], [True, False, False, False], [True, True, True, True]])
    return torch.randn(3, 4, width), mask


def slow_residual_mlp(module: ResidualMLP, rows: torch.Tensor) -> torch.Tensor:
    """fc(x) + W2 relu(bn(W1 x)), row by row, with the statistics of the rows given (biased variance)."""
    first, norm, _, last = module.mlp
    hidden = torch.stack([first.weight @ row + first.bias for row in rows])
    mean, variance = hidden.mean(0), ((hidden - hidden.mean(0)) ** 2).mean(0)
    normed = (hidden - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias
    out = [last.weight @ row.clamp(min=0) + last.bias for row in normed]
    return torch.stack([module.linear.weight @ r + module.linear.bias + o for r, o in zip(rows, out, strict=True)])


def test_in_series_the_mlp_reads_what_the_linear_layer_made() -> None:
    local, mask = ragged()
    module = ResidualMLP(input_dim=6, embed_dim=8, in_series=True).eval()
    straight = module.linear(local[mask])
    torch.testing.assert_close(module(local, mask)[mask], straight + module.mlp(straight))
    assert names(refusal(RecipeError, ResidualMLP, input_dim=6, embed_dim=8, dropout=1.0), "dropout")


@pytest.mark.parametrize("count_padding", [False, True])
def test_residual_mlp_equals_the_formula_in_training(count_padding: bool) -> None:
    local, mask = ragged()
    module = ResidualMLP(input_dim=6, embed_dim=8, count_padding=count_padding).double()
    counted = torch.ones_like(mask) if count_padding else mask
    expected = slow_residual_mlp(module, local.double()[counted])
    torch.testing.assert_close(module(local.double(), mask)[counted], expected, rtol=0, atol=1e-12)


def test_padding_enters_the_statistics_only_when_asked() -> None:
    local, mask = ragged()
    garbage = local.masked_fill(~mask.unsqueeze(-1), 1e4)
    real = ResidualMLP(input_dim=6, embed_dim=8)
    torch.testing.assert_close(real(local, mask)[mask], real(garbage, mask)[mask])
    released = ResidualMLP(input_dim=6, embed_dim=8, count_padding=True)
    assert not torch.allclose(released(local, mask)[mask], released(garbage, mask)[mask], atol=1e-2)


def test_running_statistics_are_those_of_real_rows() -> None:
    local, mask = ragged()
    module = ResidualMLP(input_dim=6, embed_dim=8)
    module(local, mask)
    expected = 0.1 * module.mlp[0](local[mask]).mean(0)
    torch.testing.assert_close(module.mlp[1].running_mean, expected)


def test_masked_rows_of_residual_mlp_are_zero() -> None:
    local, mask = ragged()
    projected = ResidualMLP(input_dim=6, embed_dim=8).eval()(local, mask)
    assert projected[~mask].abs().max() == 0
    assert projected[mask].abs().min() > 0


def test_linear_is_xavier_uniform_without_offset() -> None:
    torch.manual_seed(0)
    linear = LinearProjection(input_dim=300, embed_dim=100).linear
    bound = (6 / 400) ** 0.5
    assert 0.99 * bound < linear.weight.abs().max() <= bound
    assert linear.bias.abs().max() == 0
    assert abs(linear.weight.var().item() - bound**2 / 3) < 0.02 * bound**2


def test_linear_drops_a_feature_of_all_positions_alike() -> None:
    """So the mean over the positions is dropped out as HGR's release drops out the projected mean."""
    torch.manual_seed(0)
    projection = LinearProjection(input_dim=5, embed_dim=40, dropout=0.5)
    local, mask = torch.randn(3, 4, 5), torch.ones(3, 4, dtype=torch.bool)
    dropped, whole = projection(local, mask), projection.linear(local)
    gone = (dropped == 0).all(dim=1)
    assert torch.equal(gone, (dropped == 0).any(dim=1)) and 0.3 < float(gone.float().mean()) < 0.7
    torch.testing.assert_close(dropped, whole * 2 * ~gone.unsqueeze(1))
    assert torch.equal(projection.eval()(local, mask), whole)
    assert names(refusal(RecipeError, LinearProjection, input_dim=5, embed_dim=4, dropout=1.0), "dropout", "1")


def test_none_keeps_features_and_width() -> None:
    local, mask = ragged()
    module = PROJECTIONS.get("none")(input_dim=6, embed_dim=99)
    assert module.output_dim == 6
    assert module(local, mask) is local


@pytest.mark.parametrize("name", PROJECTIONS.names())
def test_a_projection_keeps_its_promises(name: str) -> None:
    local, mask = ragged()
    module = PROJECTIONS.get(name)(input_dim=6, embed_dim=8)
    out = module(local, mask)
    assert out.shape == (3, 4, module.output_dim)
    out[mask].pow(2).sum().backward() if out.requires_grad else None
    assert all(parameter.grad is not None for parameter in module.parameters())


@pytest.mark.parametrize("name", PROJECTIONS.names())
def test_a_projection_runs_under_autocast(name: str) -> None:
    local, mask = ragged()
    module = PROJECTIONS.get(name)(input_dim=6, embed_dim=8).eval()
    exact = module(local, mask)[mask]
    with torch.autocast("cpu", torch.bfloat16):
        rough = module(local, mask)[mask].float()
    torch.testing.assert_close(rough, exact, rtol=0.1, atol=0.1)


def test_bigru_reads_what_is_left_in_its_order() -> None:
    local, mask = ragged()
    mask[2] = torch.tensor([True, False, True, True])  # augmentation leaves holes
    module = PROJECTIONS.get("bigru")(input_dim=6, embed_dim=8)
    local[~mask] = float("nan")
    projected = module(local, mask)
    assert isinstance(module, BiGRUProjection) and projected.shape == (3, 4, 8)
    assert projected[~mask].abs().max() == 0
    for rows, real, ours in zip(local, mask, projected, strict=True):
        states, _ = module.gru(rows[real].unsqueeze(0))
        torch.testing.assert_close(ours[real], states.view(-1, 2, 8).mean(dim=1))
    projected.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


def test_the_norm_comes_before_the_linear_layer() -> None:
    torch.manual_seed(0)
    projection = PROJECTIONS.get("norm_linear")(input_dim=6, embed_dim=4, eps=0.1)
    assert projection.linear.bias is None
    with torch.no_grad():
        projection.norm.weight.uniform_()
        projection.norm.bias.uniform_()
    local = torch.randn(2, 3, 6)
    for item, feature in ((0, 1), (1, 2)):
        x = local[item, feature]
        normed = (x - x.mean()) / (x.var(unbiased=False) + 0.1).sqrt() * projection.norm.weight + projection.norm.bias
        mask = torch.ones(2, 3, dtype=torch.bool)
        torch.testing.assert_close(projection(local, mask)[item, feature], projection.linear.weight @ normed)


def test_a_linear_projection_may_have_no_bias() -> None:
    linear = PROJECTIONS.get("linear")
    assert linear(input_dim=6, embed_dim=4, bias=False).linear.bias is None
    assert linear(input_dim=6, embed_dim=4).linear.bias is not None
