"""Train a small network on handwritten digits: a program that knows nothing of Wattloop.

    wattloop run -- python examples/plain_torch.py

Needs PyTorch and scikit-learn.
"""

import torch
from sklearn.datasets import load_digits

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
data = torch.utils.data.TensorDataset(torch.tensor(images / 16).float(), torch.tensor(labels))
train, test = torch.utils.data.random_split(data, [1500, 297])
layers = [torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for _epoch in range(3):
    model.train()
    for x, y in torch.utils.data.DataLoader(train, batch_size=30, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in [test[:]])
print(f"accuracy {right / len(test):.3f}")
