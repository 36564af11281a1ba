"""Start-up module of Python programs under `wattloop run`: waits for a framework, then hooks it.

`wattloop run` puts this folder first on `PYTHONPATH` and names a folder for step files in
`WATTLOOP_STEPS`. Python imports `sitecustomize` at start-up. This one takes its folder off
`sys.path` again, runs the `sitecustomize` it hides, and watches for the frameworks below. It uses
the standard library only, because the program may run in another environment. Any Python must be
able to read this file, also Python 2: a script may start several. The hooks need 3.8.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded: a program without a framework pays for it
    from typing import Any  # noqa: F401 - in type comments

VARIABLE = "WATTLOOP_STEPS"
WATCHED = {
    "torch": ("torch_steps", "install"),
    "torch._dynamo.callback": ("torch_steps", "install_compilation"),
    "transformers.trainer_callback": ("framework_hooks", "install_transformers"),
    "keras.src.callbacks.callback_list": ("framework_hooks", "install_keras"),
    "lightning.pytorch.trainer.call": ("framework_hooks", "install_lightning"),
    "pytorch_lightning.trainer.call": ("framework_hooks", "install_lightning"),
    "torch.utils.tensorboard.writer": ("framework_hooks", "install_tensorboard"),
    "jax": ("framework_hooks", "install_jax"),
}
"""Module whose import ends -> module of this folder and its function that hooks it."""


def _run_hidden():
    # type: () -> None
    """Run the program's own sitecustomize, in the place of this one.

    Raises:
        ImportError: the program has none; Python expects this of a `sitecustomize`.
    """
    if sys.version_info < (3, 5):  # noqa: UP036 - of the program, not of wattloop
        import imp  # type: ignore[import-not-found,unused-ignore]  # gone since 3.12

        imp.load_module("sitecustomize", *imp.find_module("sitecustomize", sys.path))
        return
    # importlib's own modules, always loaded: importing importlib.util would take milliseconds.
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


class ImportWatcher(object):  # noqa: UP004 - Python 2
    """First finder of imports: finds nothing itself, but learns when a watched module is loaded."""

    def __init__(self, folder):
        # type: (str) -> None
        self._folder = folder
        self._pending = dict(WATCHED)
        self._searching = set()  # type: set[str]

    def find_spec(self, name, path=None, target=None):
        # type: (str, Any, Any) -> Any
        if name not in self._pending or name in self._searching:
            return None
        self._searching.add(name)
        try:
            finders = list(sys.meta_path)
            for finder in finders[finders.index(self) + 1 :]:
                if not hasattr(finder, "find_spec"):
                    continue
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self._call_after(name, spec.loader)
                    return spec
            return None
        finally:
            self._searching.discard(name)

    def install_now(self, name):
        # type: (str) -> None
        """Install the hook of a module that is loaded already."""
        hook = self._pending.pop(name, None)
        if hook is not None:
            self._install(hook, sys.modules[name])

    def _call_after(self, name, loader):
        # type: (str, Any) -> None
        """Call the hook after `loader` has executed the module, and leave the loader as it was.

        A library may look for a module without importing it: the hook waits for the import.
        """
        try:
            if isinstance(loader, type) or "exec_module" in vars(loader):
                return
            execute = loader.exec_module

            def exec_module(module):
                # type: (Any) -> None
                del loader.exec_module
                execute(module)
                hook = self._pending.pop(name, None) if module.__name__ == name else None
                if hook is not None:
                    self._install(hook, module)

            loader.exec_module = exec_module
        except Exception:  # noqa: BLE001 - a loader that cannot be followed: no steps, no harm
            return

    def _install(self, hook, module):
        # type: (tuple[str, str], Any) -> None
        try:
            import importlib
            import types

            if "_wattloop_hook" not in sys.modules:
                package = types.ModuleType("_wattloop_hook")
                package.__path__ = [os.path.dirname(self._folder)]  # noqa: PTH120
                sys.modules["_wattloop_hook"] = package
            name, function = hook
            getattr(importlib.import_module("_wattloop_hook.step_hook." + name), function)(module)
        except Exception as error:  # noqa: BLE001 - the program matters more than its steps
            _note(hook[0], error)


def _note(hook, error):
    # type: (str, Exception) -> None
    """Leave the reason for `wattloop run`, which reports it after the program has ended."""
    try:
        path = os.path.join(os.environ[VARIABLE], str(os.getpid()) + ".note")  # noqa: PTH118
        with open(path, "a") as file:  # noqa: PTH123
            file.write(hook + ": " + type(error).__name__ + ": " + str(error)[:300] + "\n")
    except Exception:  # noqa: BLE001 - nowhere to write
        return


if __name__ == "sitecustomize":
    _folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _folder]  # noqa: PTH100
    if sys.version_info >= (3, 8) and os.path.isdir(os.environ.get(VARIABLE, "")):  # noqa: PTH112
        sys.meta_path.insert(0, ImportWatcher(_folder))
    _run_hidden()
