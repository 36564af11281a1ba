"""job_submit.lua run by a Lua interpreter, with jobs in the form that Slurm passes."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
PLUGIN = ROOT / "examples" / "slurm" / "job_submit.lua"
URL = "http://127.0.0.1:8765"

HARNESS = """
slurm = { SUCCESS = 0, ERROR = -1 }
local said = {}
function slurm.log_info(form, ...) said[#said + 1] = "info " .. string.format(form, ...) end
function slurm.log_user(form, ...) said[#said + 1] = "user " .. string.format(form, ...) end
local function unhex(text)
  return (text:gsub("%x%x", function(pair) return string.char(tonumber(pair, 16)) end))
end
local function hex(text)
  return (tostring(text):gsub(".", function(c) return string.format("%02x", c:byte()) end))
end
assert(loadfile(PLUGIN))()
for _, job in ipairs(JOBS) do
  said = {}
  local uid = job.uid
  job.uid = nil
  local status = slurm_job_submit(job, {}, uid)
  io.write(status, " ", hex(job.admin_comment or ""))
  for _, line in ipairs(said) do io.write(" ", hex(line)) end
  io.write("\\n")
end
"""


class Outcome:
    """The result of one submitted job."""

    def __init__(self, line: str) -> None:
        status, admin, *said = [*line.rstrip("\n").split(" ")]
        self.status = int(status)
        self.admin_comment = bytes.fromhex(admin).decode("latin-1")
        self.said = [bytes.fromhex(each).decode("latin-1") for each in said]

    @property
    def told(self) -> list[str]:
        """Return the lines that the user sees."""
        return [line[5:] for line in self.said if line.startswith("user ")]

    @property
    def logged(self) -> list[str]:
        """Return the lines of the controller's log."""
        return [line[5:] for line in self.said if line.startswith("info ")]


def interpreter() -> str | None:
    """Return a Lua interpreter of this machine; Slurm may embed another one."""
    found = (shutil.which(name) for name in ("lua5.1", "lua5.3", "lua5.4", "lua"))
    return next((name for name in found if name), None)


def plugin_for(url: str, **settings: str) -> str:
    """Return the plugin's text with another address."""
    text = PLUGIN.read_text("utf-8").replace(URL, url)
    for name, value in settings.items():
        lines = text.splitlines()
        at = next(i for i, line in enumerate(lines) if line.startswith(f"local {name} = "))
        lines[at] = f"local {name} = {value}"
        text = "\n".join(lines)
    return text


def submitted(folder: Path, plugin: str, jobs: Sequence[Mapping[str, str | int]]) -> list[Outcome]:
    """Run the plugin on jobs, one after the other, in one life of the controller."""
    (folder / "plugin.lua").write_text(plugin, "utf-8")
    rows = [
        "{" + ", ".join(f"{key} = {_lua(value)}" for key, value in job.items()) + "}"
        for job in jobs
    ]
    program = HARNESS.replace("PLUGIN", json.dumps(str(folder / "plugin.lua")))
    program = program.replace("JOBS", "{" + ",\n".join(rows) + "}")
    (folder / "harness.lua").write_text(program, "ascii")
    done = subprocess.run(
        [interpreter() or "lua", str(folder / "harness.lua")],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [Outcome(line) for line in done.stdout.splitlines()]


def _lua(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    return f'unhex("{value.encode("utf-8", "surrogatepass").hex()}")'
