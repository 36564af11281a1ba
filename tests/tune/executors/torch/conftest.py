import pytest


@pytest.fixture(autouse=True)
def one_thread():
    """Small models are faster on one core, the more so where others use the machine."""
    torch = pytest.importorskip("torch", reason="trainings in PyTorch need torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
