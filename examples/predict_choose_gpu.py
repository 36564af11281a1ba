"""Which GPU fine-tunes DistilBERT with the least energy and is done within the hour?"""

from wattloop.predict import predict

DEADLINE_S = 3_600
EPOCHS, SAMPLES = 3, 400_000

# traced once; the workload then answers for every GPU
workload = predict("hf:distilbert", batch=64, seq=128, precision="fp16").workload

candidates = {}
for gpu in ("v100", "t4", "l4", "a100", "h100", "h200"):
    forecast = predict(workload, gpu=gpu, epochs=EPOCHS, samples=SAMPLES)
    run = forecast.run
    in_time = run.time_s.value <= DEADLINE_S
    print(
        f"{forecast.placement.gpu.product:<24} {run.time_s.value / 60:6.0f} min "
        f"{run.energy_j.value / 3.6e6:6.2f} kWh  "
        f"{'in time' if in_time else 'too late'}, {'fits' if forecast.fits else 'does not fit'}"
    )
    if in_time and forecast.fits:
        candidates[gpu] = run.energy_j.value

best = min(candidates, key=candidates.get) if candidates else None
print(f"least energy within the hour: {best or 'none of them'} (predicted, energy of the GPU)")
