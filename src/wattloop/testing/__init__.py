"""What tests of Wattloop and of its extensions share. Nothing else imports this package.

- `meter_contract`  what every meter must keep
- `nvml_stub`       a libnvidia-ml.so.1 with known true energy, for machines without a GPU
"""
