"""Pool a padded batch with GPO inside a model of your own, which knows nothing else of openvse."""

import torch
from torch import nn
from torch.nn import functional as F

import openvse


class SentenceClassifier(nn.Module):
    """Words -> a Transformer layer -> GPO -> classes."""

    def __init__(self, num_words: int, num_classes: int, dim: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(num_words, dim, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(dim, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True)
        self.pool = openvse.pooling("gpo", dim=dim)
        self.classify = nn.Linear(dim, num_classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Classify ``int64 [B, N]``, padded with 0."""
        real = tokens != 0  # True where a word is; PyTorch's key_padding_mask is the opposite
        states = self.layer(self.words(tokens), src_key_padding_mask=~real)
        return self.classify(self.pool(states, real))


def batch(size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sentences of 3 to 12 random words; the class says whether word 7 is among them."""
    lengths = torch.randint(3, 13, (size, 1))
    tokens = torch.randint(1, 20, (size, 12)).masked_fill(torch.arange(12) >= lengths, 0)
    return tokens, (tokens == 7).any(dim=1).long()


torch.manual_seed(0)
model = SentenceClassifier(num_words=20, num_classes=2)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(150):
    tokens, classes = batch()
    optimizer.zero_grad()
    F.cross_entropy(model(tokens), classes).backward()
    optimizer.step()

model.eval()
tokens, classes = batch(1000)
accuracy = (model(tokens).argmax(dim=1) == classes).float().mean().item()
print(f"accuracy on new sentences: {accuracy:.1%}")
weights = model.pool.aggregator.coefficients(torch.tensor([6]))[0]
print("GPO's weights of the largest to the smallest of 6:", [round(weight, 2) for weight in weights.tolist()])
