"""Trainings of Geißler et al. with data that any machine has, for `tune_h200.py`.

- `resnet18_images`   ResNet-18, generated 32x32 images, accuracy
- `lstm_household`    LSTM, a generated series like a household's, R2
- `transformer_text`  Transformer, the source text of Python's standard library, perplexity
"""
