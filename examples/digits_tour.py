"""A tour of the Python interface on the digits networks, cell by cell: open it in an editor that knows `# %%`, or run it.

python examples/digits_tour.py
"""

# %% Compile
# Two networks of one architecture: `normal` was trained as usual, `ibp` to be provable. Images are 8x8 pixels in [0, 1].
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import polytriton

folder = Path(__file__).parent if "__file__" in globals() else Path("examples")
names = ("digits_conv_normal", "digits_conv_ibp")
nets = {name: polytriton.compile(folder / f"{name}.onnx") for name in names}
with np.load(folder / "digits.npz") as data:
    images, labels = data["images"].astype(np.float64), data["labels"]
for net in nets.values():
    right = int((net.predict(images).argmax(1) == labels).sum())
    print(f"{net}: {right} of {len(images)} classified rightly")

# %% Bounds
# What can the network answer anywhere in a box? Every layer's bounds come along.
net = nets["digits_conv_ibp"]
bounds = net.bounds(images[:1] - 0.02, images[:1] + 0.02)
for k in range(10):
    print(f"y{k} in [{bounds.lo[0, k]:8.3f}, {bounds.hi[0, k]:8.3f}]")
print({name: float((side.hi - side.lo).mean().round(3)) for name, side in bounds.layers.items()})

# %% One image
# unsat: no image of the ball is misclassified. The margins are proved lower bounds, one a rival label.
result = net.verify(images[0], "0.05", int(labels[0]), clip=(0, 1))
print(result.verdict, {rival: round(float(m), 2) for rival, m in zip(result.rivals, result.margins, strict=True)})
result  # noqa: B018 - a notebook shows the image

# %% Many images
# Certified accuracy by radius: a batch is proved together. Training decides what can be proved.
proved = {}
for name, each in nets.items():
    proved[name] = [
        sum(r.verdict == "unsat" for r in each.verify(images, epsilon, labels, clip=(0, 1), falsifier=False))
        for epsilon in ("0.02", "0.05", "0.08")
    ]
    print(f"{name:20} proved of {len(images)} at 0.02, 0.05, 0.08: {proved[name]}")

# %% A counterexample
# sat: an image of the ball that the original model misclassifies in onnxruntime.
broken = [r for r in nets["digits_conv_normal"].verify(images, "0.05", labels, clip=(0, 1)) if r.verdict == "sat"]
found = broken[0]
x, y = found.counterexample.x, found.counterexample.y
moved = np.abs(x.reshape(8, 8) - found.picture.shown.reshape(8, 8)).max()
print(f"{len(broken)} of {len(images)} broken; counterexample: {found.label} becomes {y.argmax()}, pixels moved by {moved:.3f} at most")
found  # noqa: B018 - a notebook shows image, counterexample and difference

# %% As a table
# Where pandas is installed.
try:
    frame = polytriton.to_pandas(broken)
    print(frame[["verdict", "margin", "label", "rival", "seconds"]].to_string())
except polytriton.PolytritonError as error:
    print(error)

# %% Real arithmetic and deployed arithmetic
# Every verdict names what it is about. docs/deployed-arithmetic.md shows networks for which the two differ.
for semantics in ("real", "float32", "bf16"):
    each = polytriton.compile(folder / "digits_conv_ibp.onnx", semantics=semantics)
    print(f"{semantics:8} margin {each.verify(images[0], '0.05', int(labels[0]), clip=(0, 1)).margin:.6f}")

# %% Keep the compiled network
with TemporaryDirectory() as place:
    again = polytriton.load(net.save(Path(place) / "digits.poly"))
    print(again)
